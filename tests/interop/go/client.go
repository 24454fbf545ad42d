package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	attemptTimeout = 10 * time.Second
	mostAttempts   = 20
	leases         = "/lease_server.v1.LeaseServer/"
)

// After these the same identity is sent again (docs/reference/protocol.md, section 3).
var retried = map[string]bool{
	"IN_PROGRESS": true, "RECORD_PENDING": true, "DRAINING": true, "STORE_UNAVAILABLE": true,
	"OVERLOADED": true, "DEPOSED": true, "NOT_LEADER": true, "WINDOW_EXCEEDED": true,
}

// What transports and proxies answer, which says nothing about the call.
var transportCodes = map[codes.Code]bool{
	codes.Unavailable: true, codes.Internal: true, codes.Unknown: true, codes.Canceled: true,
	codes.DeadlineExceeded: true, codes.ResourceExhausted: true, codes.Aborted: true,
	codes.DataLoss: true,
}

// seen is what came back from a call.
type seen struct {
	Code     codes.Code `json:"-"`
	Number   int        `json:"code"`
	Reason   string     `json:"reason"`
	Outcome  string     `json:"outcome"`
	Attempts int        `json:"attempts"`
	Answer   [2]uint64  `json:"answer"`
}

type client struct {
	connection   *grpc.ClientConn
	id           uint64
	token        []byte
	termMs       uint64
	heartbeat    uint64
	deduplicated []string
	window       uint64
}

// connect gets a client id.
func connect(target string) (*client, error) {
	connection, err := grpc.NewClient(
		target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.WaitForReady(true)),
	)
	if err != nil {
		return nil, err
	}
	c := &client{connection: connection}
	grant, err := c.ask(leases+"Grant", nil)
	if err != nil {
		return nil, err
	}
	c.id, c.token = grant.numbers[1], grant.text(2)
	c.termMs, c.heartbeat, c.window = grant.numbers[3], grant.numbers[4], grant.numbers[7]
	for _, pattern := range grant.texts[5] {
		c.deduplicated = append(c.deduplicated, string(pattern))
	}
	return c, nil
}

// ask makes a call without a header.
func (c *client) ask(method string, request []byte) (message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	var response []byte
	if err := c.connection.Invoke(ctx, method, request, &response); err != nil {
		return message{}, fmt.Errorf("%s: %w", method, err)
	}
	return decode(response)
}

// once makes one attempt.
func (c *client) once(method string, request []byte, h header) seen {
	if h.clientID == 0 {
		h.clientID = c.id
	}
	if h.token == nil {
		h.token = c.token
	}
	return c.send(method, request, "rifl-bin", string(h.encode()), int(h.attempt))
}

func (c *client) send(method string, request []byte, name, value string, attempt int) seen {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	var response []byte
	var trailer metadata.MD
	err := c.connection.Invoke(ctx, method, request, &response, grpc.Trailer(&trailer))
	result := status.Convert(err)
	got := seen{Code: result.Code(), Number: int(result.Code()), Attempts: attempt}
	if outcome := trailer.Get("rifl-outcome"); len(outcome) > 0 {
		got.Outcome = outcome[0]
	}
	for _, detail := range result.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "rifl" {
			got.Reason = info.Reason
		}
	}
	if answer, err := decode(response); err == nil {
		got.Answer = [2]uint64{answer.numbers[1], answer.numbers[2]}
	}
	return got
}

// call makes all attempts, under one identity and one stamp.
func (c *client) call(method string, request []byte, h header) (seen, error) {
	h.timeUs, h.seed = uint64(time.Now().UnixMicro()), rand.Uint64()
	var got seen
	for attempt := 1; attempt <= mostAttempts; attempt++ {
		h.attempt = uint64(attempt)
		got = c.once(method, request, h)
		transport := transportCodes[got.Code] && got.Outcome == ""
		if !retried[got.Reason] && !transport {
			if attempt > 1 && got.Outcome == "" {
				return got, fmt.Errorf("answered by a server that does not deduplicate")
			}
			return got, nil
		}
		most := 50 * time.Millisecond << min(attempt, 6)
		<-time.After(rand.N(most))
	}
	return got, fmt.Errorf("no answer in %d attempts: %+v", mostAttempts, got)
}

// renewed is what came back from a heartbeat.
type renewed struct {
	SameID  bool   `json:"client_id"`
	TermMs  uint64 `json:"term_ms"`
	Refused string `json:"refused"`
}

const heartbeatByStream = 2

func (c *client) renew(firstIncomplete uint64) (renewed, error) {
	request := number(text(number(nil, 1, c.id), 2, c.token), 5, firstIncomplete)
	var reply message
	var err error
	if c.heartbeat == heartbeatByStream {
		reply, err = c.keepAlive(request)
	} else {
		reply, err = c.ask(leases+"Renew", request)
	}
	return renewed{reply.numbers[1] == c.id, reply.numbers[2], string(reply.text(4))}, err
}

func (c *client) keepAlive(request []byte) (message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	both := grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := c.connection.NewStream(ctx, &both, leases+"KeepAlive")
	if err != nil {
		return message{}, err
	}
	if err := stream.SendMsg(request); err != nil {
		return message{}, err
	}
	var response []byte
	if err := stream.RecvMsg(&response); err != nil {
		return message{}, err
	}
	return decode(response)
}
