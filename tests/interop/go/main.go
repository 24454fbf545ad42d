// A client in Go, written from docs/reference/protocol.md: `client TARGET HEADERS` plays the
// scenario of ../scenario.py and prints what it saw, one JSON object a line.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
)

const (
	deposit = "/bank.v1.Bank/Deposit"
	balance = "/bank.v1.Bank/Balance"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: client TARGET HEADERS, or client log TARGET"))
	}
	if os.Args[1] == "log" {
		fail(playLog(os.Args[2]))
		return
	}
	count, err := checkVectors(os.Args[2])
	fail(err)
	tell("vectors", map[string]int{"count": count})
	fail(play(os.Args[1]))
}

func play(target string) error {
	c, err := connect(target)
	if err != nil {
		return err
	}
	tell("granted", map[string]any{
		"term_ms": c.termMs, "window": c.window,
		"deduplicated": c.deduplicated, "heartbeat": c.heartbeat,
	})
	for seq := uint64(1); seq <= 6; seq++ {
		// The even ones lose their first answers; see scenario.py.
		name := "paid"
		if seq%2 == 0 {
			name = "lost"
		}
		request := deposited(fmt.Sprintf("%s-%d", name, seq), "alice", 500)
		got, err := c.call(deposit, request, header{seq: seq, firstIncomplete: seq})
		if err != nil {
			return err
		}
		tell(fmt.Sprintf("paid-%d", seq), got)
	}

	sixth := header{seq: 6, firstIncomplete: 6, attempt: 9}
	tell("again", c.once(deposit, deposited("lost-6", "alice", 500), sixth))
	tell("other-payload", c.once(deposit, deposited("x", "alice", 7), sixth))
	stranger := header{seq: 7, firstIncomplete: 6, attempt: 1, token: make([]byte, len(c.token))}
	tell("wrong-token", c.once(deposit, deposited("y", "alice", 1), stranger))
	heartbeat, err := c.renew(6)
	if err != nil {
		return err
	}
	tell("renewed", heartbeat)

	refused := deposited("z", "nobody", 1)
	got, err := c.call(deposit, refused, header{seq: 7, firstIncomplete: 6})
	if err != nil {
		return err
	}
	tell("refused", got)
	// 6 is still wanted, 7 is not.
	asked := header{seq: 8, firstIncomplete: 6, completed: []uint64{1, 1}}
	if got, err = c.call(balance, text(nil, 1, []byte("alice")), asked); err != nil {
		return err
	}
	tell("balance", got)
	tell("stale", c.once(deposit, refused, header{seq: 7, firstIncomplete: 6, attempt: 2}))
	tell("kept", c.once(deposit, deposited("lost-6", "alice", 500), sixth))

	resolution := number(text(number(nil, 1, c.id), 2, c.token), 3, 9)
	resolved, err := c.ask("/rifl.v1.Outcomes/Resolve", resolution)
	if err != nil {
		return err
	}
	tell("resolved", map[string]uint64{"outcome": resolved.numbers[1]})
	late := deposited("late", "alice", 500)
	tell("too-late", c.once(deposit, late, header{seq: 9, firstIncomplete: 8, attempt: 1}))

	// From now on no answer up to the eighth is wanted: told without a call.
	if _, err = c.renew(9); err != nil {
		return err
	}
	again := header{seq: 8, firstIncomplete: 6, attempt: 2}
	tell("freed", c.once(balance, text(nil, 1, []byte("alice")), again))

	session, err := c.ask(leases+"OpenSession", text(number(text(nil, 1, []byte("orders")), 2, 3_600_000), 3, []byte("sixteen bytes or more")))
	if err != nil {
		return err
	}
	keyed := header{clientID: session.numbers[1], token: session.text(2), key: []byte("order-17")}
	for _, step := range []string{"keyed", "keyed-again"} {
		if got, err = c.call(deposit, deposited("lost-key", "alice", 500), keyed); err != nil {
			return err
		}
		tell(step, got)
	}
	if _, err = c.ask(leases+"CloseSession", text(text(nil, 1, []byte("orders")), 2, []byte("sixteen bytes or more"))); err != nil {
		return err
	}
	keyed.key, keyed.attempt = []byte("order-18"), 1
	tell("closed", c.once(deposit, late, keyed))

	if _, err = c.ask(leases+"Release", text(number(nil, 1, c.id), 2, c.token)); err != nil {
		return err
	}
	tell("released", c.once(deposit, late, header{seq: 10, firstIncomplete: 8, attempt: 1}))
	invoice := deposited("invoice", "alice", 500)
	for _, step := range []string{"plain-key", "plain-key-again"} {
		tell(step, c.send(deposit, invoice, "idempotency-key", "invoice 12", 1))
	}
	return c.connection.Close()
}

func deposited(reference, account string, cents uint64) []byte {
	return number(text(text(nil, 1, []byte(reference)), 2, []byte(account)), 3, cents)
}

type vector struct {
	Name   string
	Header struct {
		ClientID         json.Number `json:"client_id"`
		Token            string
		Seq              json.Number
		Key              string
		FirstIncomplete  json.Number `json:"first_incomplete"`
		Attempt          uint64
		TimeUs           json.Number `json:"time_us"`
		Seed             json.Number
		ContentHash      string `json:"content_hash"`
		MaxResponseBytes uint64 `json:"max_response_bytes"`
		Received         uint64
		TryMs            uint32 `json:"try_ms"`
	}
	Completed []uint64
	Wire      string
}

// checkVectors encodes every valid header of the test vectors.
func checkVectors(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var vectors struct{ Valid []vector }
	if err := json.Unmarshal(data, &vectors); err != nil {
		return 0, err
	}
	for _, each := range vectors.Valid {
		fields := each.Header
		made := header{
			clientID: whole(fields.ClientID), token: raw(fields.Token),
			seq: whole(fields.Seq), key: raw(fields.Key),
			firstIncomplete: whole(fields.FirstIncomplete), completed: each.Completed,
			attempt: fields.Attempt, timeUs: whole(fields.TimeUs), seed: whole(fields.Seed),
			contentHash: raw(fields.ContentHash), maxResponseBytes: fields.MaxResponseBytes,
			received: fields.Received, tryMs: fields.TryMs,
		}
		if wire := hex.EncodeToString(made.encode()); wire != each.Wire {
			return 0, fmt.Errorf("%s: %s, not %s", each.Name, wire, each.Wire)
		}
	}
	return len(vectors.Valid), nil
}

// whole reads a number, which above 2^53 is a string; none is 0.
func whole(value json.Number) uint64 {
	var found uint64
	if value != "" {
		_, err := fmt.Sscan(value.String(), &found)
		fail(err)
	}
	return found
}

func raw(value string) []byte {
	found, err := hex.DecodeString(value)
	fail(err)
	return found
}

func tell(step string, what any) {
	encoded, err := json.Marshal(what)
	fail(err)
	line := map[string]any{}
	fail(json.Unmarshal(encoded, &line))
	maps.Copy(line, map[string]any{"step": step})
	fail(json.NewEncoder(os.Stdout).Encode(line))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
