package dragoman;

import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import com.google.rpc.ErrorInfo;
import dragoman.v1.Adapter.ExecuteRequest;
import dragoman.v1.Adapter.Workspace;
import dragoman.v1.AdapterServiceGrpc;
import dragoman.v1.Event.AgentEvent;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;

/** Has the router at DRAGOMAN_ROUTER, whose token is DRAGOMAN_TOKEN, run `cat`, and prints what that prints. */
public final class Hello {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    public static void main(String[] arguments) throws Exception {
        Metadata headers = new Metadata();
        headers.put(AUTHORIZATION, "Bearer " + System.getenv("DRAGOMAN_TOKEN"));
        ManagedChannel channel = Grpc.newChannelBuilder(
                        System.getenv("DRAGOMAN_ROUTER"), InsecureChannelCredentials.create())
                .build();
        var router = AdapterServiceGrpc.newBlockingStub(channel)
                .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
        ExecuteRequest request = ExecuteRequest.newBuilder()
                .setAdapter("process")
                .setPrompt("hello from Java")
                .setConfig(Struct.newBuilder()
                        .putFields("command", Value.newBuilder().setStringValue("cat").build()))
                .setWorkspace(Workspace.newBuilder().setCwd("/tmp"))
                .build();
        try {
            for (var events = router.execute(request); events.hasNext(); ) {
                AgentEvent event = events.next();
                if (event.hasLog()) System.out.println(event.getLog().getText());
                if (event.hasResult()) System.out.println(event.getResult().getOutcome());
            }
        } catch (StatusRuntimeException rejected) {
            // The reason is stable, for programs; the message is for people.
            for (var detail : StatusProto.fromThrowable(rejected).getDetailsList()) {
                if (detail.is(ErrorInfo.class)) System.out.println(detail.unpack(ErrorInfo.class).getReason());
            }
        } finally {
            channel.shutdownNow();
        }
    }
}
