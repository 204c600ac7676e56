module newagent_adapter

go 1.25.0

require (
	dragoman/adapters/go v0.0.0
	dragoman/clients/go v0.0.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.opentelemetry.io/otel v1.44.0 // indirect
	go.opentelemetry.io/otel/trace v1.44.0 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800 // indirect
	google.golang.org/grpc v1.84.0 // indirect
)

// No proxy has these modules: this project has a copy of them.
replace (
	dragoman/adapters/go => ./dragoman/adapters/go
	dragoman/clients/go => ./dragoman/clients/go
)
