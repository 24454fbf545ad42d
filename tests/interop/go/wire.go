package main

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// header is a rifl.v1.CallHeader. Fields that are zero are left out.
type header struct {
	clientID         uint64
	token            []byte
	seq              uint64
	key              []byte
	firstIncomplete  uint64
	completed        []uint64
	attempt          uint64
	timeUs, seed     uint64
	contentHash      []byte
	maxResponseBytes uint64
	received         uint64
	tryMs            uint32
}

func (h header) encode() []byte {
	var out, ranges []byte
	out = number(out, 1, h.clientID)
	out = text(out, 2, h.token)
	out = number(out, 3, h.seq)
	out = text(out, 4, h.key)
	out = number(out, 5, h.firstIncomplete)
	for _, each := range h.completed {
		ranges = protowire.AppendVarint(ranges, each)
	}
	out = text(out, 6, ranges)
	out = number(out, 7, h.attempt)
	out = fixed(out, 8, h.timeUs)
	out = fixed(out, 9, h.seed)
	out = text(out, 11, h.contentHash)
	out = number(out, 12, h.maxResponseBytes)
	out = number(out, 13, h.received)
	if h.tryMs == 0 {
		return out
	}
	return protowire.AppendFixed32(protowire.AppendTag(out, 16, protowire.Fixed32Type), h.tryMs)
}

func number(out []byte, field protowire.Number, value uint64) []byte {
	if value == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, field, protowire.VarintType), value)
}

func fixed(out []byte, field protowire.Number, value uint64) []byte {
	if value == 0 {
		return out
	}
	return protowire.AppendFixed64(protowire.AppendTag(out, field, protowire.Fixed64Type), value)
}

func text(out []byte, field protowire.Number, value []byte) []byte {
	if len(value) == 0 {
		return out
	}
	return protowire.AppendBytes(protowire.AppendTag(out, field, protowire.BytesType), value)
}

// message is what was decoded, without the types that a .proto file gives.
type message struct {
	numbers map[protowire.Number]uint64
	texts   map[protowire.Number][][]byte
}

func decode(data []byte) (message, error) {
	found := message{map[protowire.Number]uint64{}, map[protowire.Number][][]byte{}}
	for len(data) > 0 {
		field, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return found, protowire.ParseError(size)
		}
		data = data[size:]
		switch kind {
		case protowire.VarintType:
			found.numbers[field], size = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var value uint32
			value, size = protowire.ConsumeFixed32(data)
			found.numbers[field] = uint64(value)
		case protowire.BytesType:
			var value []byte
			value, size = protowire.ConsumeBytes(data)
			found.texts[field] = append(found.texts[field], value)
		default:
			size = protowire.ConsumeFieldValue(field, kind, data)
		}
		if size < 0 {
			return found, protowire.ParseError(size)
		}
		data = data[size:]
	}
	return found, nil
}

func (m message) text(field protowire.Number) []byte {
	values := m.texts[field]
	if len(values) == 0 {
		return nil
	}
	return values[len(values)-1]
}

// rawCodec leaves encoding to the code above.
type rawCodec struct{}

func (rawCodec) Marshal(value any) ([]byte, error) {
	raw, ok := value.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", value)
	}
	return raw, nil
}

func (rawCodec) Unmarshal(data []byte, value any) error {
	into, ok := value.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is not a pointer to bytes", value)
	}
	*into = append([]byte(nil), data...)
	return nil
}

func (rawCodec) Name() string { return "proto" }
