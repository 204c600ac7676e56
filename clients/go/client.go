// Package dragoman is a client of Dragoman: of a router, or of one adapter. It speaks the contract dragoman.v1, of
// which package dragomanv1 has the messages.
//
// Every failed call returns an *Error; ReasonOf says what programs decide by. The failure of an agent is no error but
// the result of its run.
package dragoman

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	mib                = 1 << 20
	largestMessage     = 17 * mib // above the contract's own limit, so that that one is reported, with a reason
	defaultReattach    = 30 * time.Second
	defaultOrphanAfter = 30 * time.Second
)

// Client is a client of a router or of one adapter. It may be used by several goroutines.
type Client struct {
	// Adapter has the unary calls of AdapterService. Its Execute and Attach are single streams; see Client.Execute.
	Adapter pb.AdapterServiceClient
	// Router has the calls of RouterService, which only a router serves.
	Router pb.RouterServiceClient

	conn       *grpc.ClientConn
	reattach   time.Duration
	connected  atomic.Bool // whether the server was ever reached
	unbatching atomic.Bool // whether the server rejected batches, as one of an earlier revision does
}

// Option changes how a client connects.
type Option func(*options)

type options struct {
	token    string
	hasToken bool
	tls      *TLSFiles
	reattach time.Duration
}

// WithToken sets the token of calls over TCP. The default is DRAGOMAN_TOKEN, else this user's token, which is sent only
// to a server of this user on this machine.
func WithToken(token string) Option {
	return func(o *options) { o.token, o.hasToken = token, true }
}

// WithTLS names the files of TLS. With authorities, connections over TCP use it. The default are those of
// EnvironmentTLS.
func WithTLS(files TLSFiles) Option {
	return func(o *options) { o.tls = &files }
}

// WithReattach sets for how long a broken stream is reconnected without progress. The default is 30 seconds.
func WithReattach(limit time.Duration) Option {
	return func(o *options) { o.reattach = limit }
}

// New returns a client for an address: "unix:/path" or "host:port". An empty one means DefaultAddress. It connects with
// the first call.
func New(address string, opts ...Option) (*Client, error) {
	o := options{reattach: defaultReattach}
	for _, opt := range opts {
		opt(&o)
	}
	address = cmp.Or(address, DefaultAddress())
	where, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	transport, isSecure, err := transportTo(where, o)
	if err != nil {
		return nil, err
	}
	token, err := tokenFor(where, o, isSecure)
	if err != nil {
		return nil, err
	}
	client := &Client{reattach: o.reattach}
	dialOptions := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithNoProxy(),      // a proxy variable would catch loopback addresses too
		grpc.WithDisableRetry(), // Execute must not run twice because a library tried again
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestMessage), grpc.MaxCallSendMsgSize(largestMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(client.typed),
	}
	if token != "" {
		dialOptions = append(dialOptions, grpc.WithPerRPCCredentials(bearer(token)))
	}
	client.conn, err = grpc.NewClient(where.target, dialOptions...)
	if err != nil {
		return nil, Errorf(AddressUntrusted, "%s: %v", address, err)
	}
	client.Adapter, client.Router = pb.NewAdapterServiceClient(client.conn), pb.NewRouterServiceClient(client.conn)
	return client, nil
}

// transportTo returns the credentials of connections to a place, and whether they are of TLS.
func transportTo(where place, o options) (transport credentials.TransportCredentials, isSecure bool, err error) {
	if !where.isTCP {
		return insecure.NewCredentials(), false, nil
	}
	files := o.tls
	if files == nil {
		named, err := EnvironmentTLS()
		if err != nil {
			return nil, false, err
		}
		files = &named
	}
	if err := files.check(); err != nil {
		return nil, false, err
	}
	if files.Authorities == "" {
		return insecure.NewCredentials(), false, nil
	}
	latest, err := newReloader(*files)
	if err != nil {
		return nil, false, err
	}
	return clientCredentials{latest}, true, nil
}

// tokenFor returns the token that calls to a place carry.
func tokenFor(where place, o options, isSecure bool) (string, error) {
	token := o.token
	if !o.hasToken {
		token = environmentToken()
	}
	if isChosen := where.isTCP && token != ""; where.isLocal && !isChosen {
		if err := where.check(); err != nil {
			return "", err
		}
	}
	if !where.isTCP {
		return "", nil
	}
	if token != "" && !where.isLocal && !isSecure {
		return "", Errorf(AddressUntrusted, "%s: the token would go to another machine in the clear; nothing was sent. Set %s to the "+
			"authorities that sign the server's certificate, or tunnel to a local address (ssh -L)", where.target, tlsCAVariable)
	}
	if o.hasToken || !where.isLocal {
		return token, nil
	}
	token, err := UserToken()
	if err != nil {
		return "", Errorf(AddressUntrusted, "%v", err)
	}
	return token, nil
}

// bearer is a token as the metadata of each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (b bearer) RequireTransportSecurity() bool { return false }

// Close closes the connection and detaches from all runs.
func (c *Client) Close() error { return c.conn.Close() }

// Execute starts a run, and returns once the server has accepted it. A rejection is returned as an *Error.
//
// The request is not changed. Without a run ID it gets a new one, which makes sending it idempotent; without
// orphan_after it gets 30 seconds. The end of ctx ends the stream, not the run, which another stream may continue; use
// Adapter.Cancel to end the run.
func (c *Client) Execute(ctx context.Context, request *pb.ExecuteRequest) (*Run, error) {
	own := proto.CloneOf(request)
	own.RunId = cmp.Or(own.GetRunId(), newRunID())
	if own.OrphanAfter == nil {
		own.OrphanAfter = durationpb.New(defaultOrphanAfter)
	}
	attach := &pb.AttachRequest{RunId: own.RunId, Adapter: own.GetAdapter(), Hold: true}
	return c.begin(ctx, own, attach)
}

// Attach follows a run that exists: the events after a sequence, replay_done, then live events. Set Hold to keep the run
// from being orphaned while the stream is open.
func (c *Client) Attach(ctx context.Context, request *pb.AttachRequest) (*Run, error) {
	return c.begin(ctx, nil, proto.CloneOf(request))
}

func (c *Client) begin(ctx context.Context, execute *pb.ExecuteRequest, attach *pb.AttachRequest) (*Run, error) {
	run := &Run{
		client: c, ctx: ctx, execute: execute, attach: attach,
		lastSequence: attach.GetAfterSequence(), requested: map[string]bool{},
	}
	run.setBatching(!c.unbatching.Load())
	for !run.accepted {
		if err := run.step(); err != nil {
			return nil, err
		}
	}
	return run, nil
}

// typed makes an *Error of the status of each unary call.
func (c *Client) typed(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if err := invoke(ctx, method, request, reply, conn, opts...); err != nil {
		return c.convert(err)
	}
	c.connected.Store(true)
	return nil
}

// convert returns what a status says; a reason of the contract in it shows that the server was reached.
func (c *Client) convert(err error) *Error {
	converted := FromError(err)
	if converted.Reason != "" {
		c.connected.Store(true)
	}
	return converted
}

// waitConnected waits for the first connection, or for the failure of the attempt. A failed call alone does not show
// whether the request was sent: if the connection was refused it was not, if it broke it may have been.
func (c *Client) waitConnected(ctx context.Context) {
	for !c.connected.Load() {
		c.conn.Connect()
		switch state := c.conn.GetState(); state {
		case connectivity.Ready:
			c.connected.Store(true)
		case connectivity.Idle, connectivity.Connecting:
			if !c.conn.WaitForStateChange(ctx, state) {
				return
			}
		default:
			return
		}
	}
}
