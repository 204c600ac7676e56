// Command load is both ends of a benchmark: an adapter that emits, and a client that reads. They speak gRPC over the
// HTTP/2 of Go's standard library, so that nothing is downloaded and neither is what limits the throughput.
//
//	load adapter SOCKET DESCRIPTION    DESCRIPTION: a file with a serialized DescribeResponse
//	load client < JOB                  JOB: one line of JSON, see Job
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "adapter":
		description, err := os.ReadFile(args[2])
		if err != nil {
			return err
		}
		return serve(args[1], description)
	case len(args) == 1 && args[0] == "client":
		return read(os.Stdin, os.Stdout)
	}
	return fmt.Errorf("usage: load adapter SOCKET DESCRIPTION | load client < JOB")
}

// Numbers of the fields of dragoman.v1 that are read or written here.
const (
	eventSequence, eventText, eventStarted, eventResult, eventBatch, eventRunID, eventAttempt = 1, 2, 16, 28, 32, 100, 102
	textItem, textOffset, textDelta                                                           = 1, 2, 3
	requestRunID, requestPrompt, requestBatching                                              = 1, 7, 28
	batchEvents, resultOutcome, startedAdapter                                                = 1, 1, 1
	outcomeSucceeded                                                                          = 1
)

const (
	service   = "/dragoman.v1.AdapterService/"
	prefixLen = 5 // of a gRPC message: a flag, and the length in four bytes
)

func protocols() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

func listen(socket string) (net.Listener, error) {
	_ = os.Remove(socket)
	return net.Listen("unix", socket)
}

func appendNumber(b []byte, field int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field)<<3), value)
}

// appendSequence appends the sequence of an event, the one field of a fixed size.
func appendSequence(b []byte, sequence uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, eventSequence<<3|1), sequence)
}

func appendBytes(b []byte, field int, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

// appendMessage appends a gRPC message.
func appendMessage(b, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32(append(b, 0), uint32(len(message))), message...)
}

// fields calls visit with each field of a serialized message that is a number or bytes.
func fields(b []byte, visit func(field int, number uint64, bytes []byte)) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return fmt.Errorf("a tag is cut off")
		}
		b = b[n:]
		field := int(tag >> 3)
		switch tag & 7 {
		case 0, 2:
			value, n := binary.Uvarint(b)
			if n <= 0 {
				return fmt.Errorf("field %d is cut off", field)
			}
			b = b[n:]
			if tag&7 == 0 {
				visit(field, value, nil)
				continue
			}
			if value > uint64(len(b)) {
				return fmt.Errorf("field %d is cut off", field)
			}
			visit(field, 0, b[:value])
			b = b[value:]
		case 1, 5:
			size := map[uint64]int{1: 8, 5: 4}[tag&7]
			if len(b) < size {
				return fmt.Errorf("field %d is cut off", field)
			}
			b = b[size:]
		default:
			return fmt.Errorf("field %d has a type that is not known", field)
		}
	}
	return nil
}
