// Program hello runs a command through a router, and prints what it prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"google.golang.org/protobuf/types/known/structpb"

	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

func main() {
	if err := hello(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func hello(ctx context.Context) error {
	client, err := dragoman.New("") // DRAGOMAN_ROUTER, else this user's router
	if err != nil {
		return err
	}
	defer client.Close()
	config, err := structpb.NewStruct(map[string]any{"command": "cat"})
	if err != nil {
		return err
	}
	run, err := client.Execute(ctx, &pb.ExecuteRequest{
		Adapter:   "process",
		Task:      &pb.ExecuteRequest_Prompt{Prompt: "hello"},
		Workspace: &pb.Workspace{Cwd: "/tmp"},
		Config:    config,
	})
	if err != nil {
		return err
	}
	for {
		event, err := run.Recv()
		if errors.Is(err, io.EOF) {
			fmt.Println(run.Result().GetOutcome())
			return nil
		}
		if err != nil {
			return err
		}
		if text := event.GetLog().GetText(); text != "" {
			fmt.Println(text)
		}
	}
}
