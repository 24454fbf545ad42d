package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	sharedLog  = "/sharedlog.v1.Log/"
	substreams = 4
)

// served is a log over gRPC, written from docs/reference/log-protocol.md: `client log TARGET`.
type served struct {
	connection  *grpc.ClientConn
	incarnation []byte
	// The producer as requests show it, and its highest seq.
	producer []byte
	seq      uint64
}

// refused is an ErrorInfo of domain sharedlog.
type refused struct {
	reason, appended string
	fields           map[string]string
}

func (r refused) Error() string { return fmt.Sprintf("%s, appended %s", r.reason, r.appended) }

func playLog(target string) error {
	connection, err := grpc.NewClient(
		target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodec(rawCodec{}), grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(9<<20),
		),
	)
	if err != nil {
		return err
	}
	log := &served{connection: connection}
	described, err := log.ask("Describe", nil)
	if err != nil {
		return err
	}
	log.incarnation = described.text(1)
	if _, err = log.ask("MakeStream", number(text(nil, 2, []byte("orders")), 3, substreams)); err != nil {
		return err
	}
	if err = log.grant(); err != nil {
		return err
	}
	if err = log.publishAll(); err != nil {
		return err
	}
	if err = log.transact(); err != nil {
		return err
	}
	if err = log.fenced(); err != nil {
		return err
	}
	if err = log.follow(); err != nil {
		return err
	}
	return connection.Close()
}

// ask sends a request, to which the incarnation is added, again and again until it is answered.
func (log *served) ask(method string, request []byte) (message, error) {
	request = text(request, 1, log.incarnation)
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
		var response []byte
		err := log.connection.Invoke(ctx, sharedLog+method, request, &response)
		cancel()
		if err == nil {
			return decode(response)
		}
		found, typed := refusal(err)
		again := found.reason == "LOG_UNAVAILABLE" || found.reason == "QUOTA_EXCEEDED"
		if typed && !again {
			return message{}, found
		}
		code := status.Code(err)
		if !typed && code != codes.Unavailable && code != codes.DeadlineExceeded || attempt == mostAttempts {
			return message{}, fmt.Errorf("%s: %w", method, err)
		}
		<-time.After(50 * time.Millisecond << min(attempt, 6))
	}
}

func refusal(err error) (refused, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "sharedlog" {
			return refused{info.Reason, info.Metadata["appended"], info.Metadata}, true
		}
	}
	return refused{}, false
}

func (log *served) grant() error {
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return err
	}
	granted, err := log.ask("Grant", number(text(nil, 2, token), 3, 1))
	if err != nil {
		return err
	}
	log.producer = number(text(number(nil, 1, granted.numbers[1]), 2, token), 3, 1)
	log.seq = 0
	return nil
}

// message places one: its key says which substream.
func newMessage(key, body string) ([]byte, string) {
	hash := fnv.New32a()
	hash.Write([]byte(key))
	tag := fmt.Sprintf("orders/%d", hash.Sum32()%substreams)
	envelope := text(number(nil, 1, 1), 2, []byte("text/plain; charset=utf-8"))
	envelope = text(envelope, 4, []byte(key))
	envelope = number(envelope, 9, uint64(time.Now().UnixMicro()))
	envelope = text(envelope, 10, []byte(body))
	return text(text(nil, 1, []byte(tag)), 2, envelope), tag
}

func (log *served) appendRequest(seq uint64) []byte {
	return number(text(nil, 2, log.producer), 3, seq)
}

// append sends the producer's next append.
func (log *served) append(rest []byte) (message, error) {
	found, err := log.ask("Append", append(log.appendRequest(log.seq+1), rest...))
	if err == nil {
		log.seq++
	}
	return found, err
}

func (log *served) publishAll() error {
	for each := range 6 {
		placed, tag := newMessage(fmt.Sprintf("customer %d", each), fmt.Sprintf("order %d", each))
		request := append(log.appendRequest(log.seq+1), text(nil, 6, placed)...)
		first, err := log.ask("Append", request)
		if err != nil {
			return err
		}
		// As if that reply had been lost.
		again, err := log.ask("Append", request)
		if err != nil {
			return err
		}
		log.seq++
		tell("published", map[string]any{
			"lsn": first.numbers[1], "again": again.numbers[1], "kept": again.numbers[2] == 0, "tag": tag,
		})
	}
	other, _ := newMessage("customer 5", "another order")
	_, err := log.ask("Append", append(log.appendRequest(log.seq), text(nil, 6, other)...))
	tellRefusal("reused", err)
	_, err = log.ask("Append", append(log.appendRequest(log.seq+7), text(nil, 6, other)...))
	tellRefusal("ahead", err)
	return nil
}

// transact has messages pending, and commits them by a marker.
func (log *served) transact() error {
	var opened, spans []byte
	count := 0
	for each := range 5 {
		placed, _ := newMessage(fmt.Sprintf("customer %d", each), fmt.Sprintf("line %d", each))
		found, err := log.append(append(text(nil, 6, placed), present(7, opened)...))
		if err != nil {
			return err
		}
		for _, span := range found.texts[4] {
			begin, err := decode(span)
			if err != nil {
				return err
			}
			opened = text(opened, 1, begin.text(1))
			spans = text(spans, 3, span)
			count++
		}
	}
	decided := append(number(text(nil, 1, log.producer), 2, log.seq), spans...)
	marker := text(number(nil, 1, 1), 2, decided)
	found, err := log.append(text(nil, 8, marker))
	if err != nil {
		return err
	}
	tell("committed", map[string]any{"lsn": found.numbers[1], "spans": count})
	return nil
}

// present is a message that is there even where nothing is in it.
func present(field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), value)
}

func (log *served) fenced() error {
	fence, err := log.ask("RaiseFence", text(nil, 2, []byte("writer")))
	if err != nil {
		return err
	}
	shown := number(text(nil, 1, []byte("writer")), 2, fence.numbers[2])
	placed, _ := newMessage("customer 0", "under a fence")
	under := append(text(nil, 5, shown), text(nil, 6, placed)...)
	if _, err = log.append(under); err != nil {
		return err
	}
	if _, err = log.ask("RaiseFence", text(nil, 2, []byte("writer"))); err != nil {
		return err
	}
	_, err = log.append(under)
	tellRefusal("fenced", err)
	return nil
}

// follow reads everything under a name, says what is done in the middle, and goes on from there.
func (log *served) follow() error {
	request := text(text(text(nil, 1, log.incarnation), 2, []byte("orders")), 8, []byte("go"))
	seen, done := 0, map[uint64][]byte{}
	for _, most := range []int{7, 5} {
		ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
		stream, err := log.connection.NewStream(
			ctx, &grpc.StreamDesc{ServerStreams: true}, sharedLog+"Follow",
		)
		if err == nil {
			err = stream.SendMsg(request)
		}
		if err == nil {
			err = stream.CloseSend()
		}
		for count := 0; err == nil && count < most; {
			var reply []byte
			if err = stream.RecvMsg(&reply); err != nil {
				break
			}
			var got message
			if got, err = decode(reply); err != nil {
				break
			}
			for _, data := range got.texts[2] {
				if count == most {
					break
				}
				if err = log.delivered(data, done); err != nil {
					break
				}
				count, seen = count+1, seen+1
			}
		}
		cancel()
		if err != nil {
			return fmt.Errorf("after %d messages: %w", seen, err)
		}
		if err = log.move(done); err != nil {
			return err
		}
	}
	return nil
}

func (log *served) delivered(data []byte, done map[uint64][]byte) error {
	each, err := decode(data)
	if err != nil {
		return err
	}
	place, err := decode(each.text(1))
	if err != nil {
		return err
	}
	envelope, err := decode(each.text(2))
	if err != nil {
		return err
	}
	done[place.numbers[4]] = each.text(1)
	tell("delivered", map[string]any{
		"lsn": place.numbers[1], "ordinal": place.numbers[2], "checksum": place.numbers[3],
		"substream": place.numbers[4], "body": string(envelope.text(10)),
	})
	return nil
}

func (log *served) move(done map[uint64][]byte) error {
	request := text(text(nil, 2, []byte("orders")), 3, []byte("go"))
	for substream, place := range done {
		request = append(request, present(4, text(number(nil, 1, substream), 2, place))...)
	}
	_, err := log.ask("MoveHold", request)
	return err
}

func tellRefusal(step string, err error) {
	found, _ := err.(refused)
	tell(step, map[string]any{
		"reason": found.reason, "appended": found.appended,
		"expected": found.fields["expected"], "number": found.fields["number"],
	})
}
