package dragoman;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import com.google.rpc.ErrorInfo;
import dragoman.v1.Adapter.DescribeRequest;
import dragoman.v1.Adapter.ExecuteRequest;
import dragoman.v1.Adapter.Workspace;
import dragoman.v1.AdapterServiceGrpc;
import dragoman.v1.AdapterServiceGrpc.AdapterServiceBlockingStub;
import dragoman.v1.Event.AgentEvent;
import dragoman.v1.Event.Outcome;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Calls the router at DRAGOMAN_ROUTER, whose token is DRAGOMAN_TOKEN. */
class ClientTest {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private ManagedChannel channel;
    private AdapterServiceBlockingStub router;

    @BeforeEach
    void connect() {
        Metadata headers = new Metadata();
        headers.put(AUTHORIZATION, "Bearer " + System.getenv("DRAGOMAN_TOKEN"));
        channel = Grpc.newChannelBuilder(System.getenv("DRAGOMAN_ROUTER"), InsecureChannelCredentials.create()).build();
        router = AdapterServiceGrpc.newBlockingStub(channel)
                .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers))
                .withDeadlineAfter(30, TimeUnit.SECONDS);
    }

    @AfterEach
    void disconnect() throws InterruptedException {
        channel.shutdownNow();
        channel.awaitTermination(10, TimeUnit.SECONDS);
    }

    @Test
    void describesAnAdapter() {
        var described = router.describe(DescribeRequest.newBuilder().setAdapter("process").build());
        assertEquals("process", described.getAdapter());
        assertFalse(described.getConfigSchemaJson().isEmpty());
    }

    @Test
    void executesARunToItsResult(@TempDir Path directory) {
        Struct config = Struct.newBuilder()
                .putFields("command", Value.newBuilder().setStringValue("cat").build())
                .build();
        ExecuteRequest request = ExecuteRequest.newBuilder()
                .setAdapter("process")
                .setPrompt("hello from Java")
                .setConfig(config)
                .setWorkspace(Workspace.newBuilder().setCwd(directory.toString()))
                .build();
        List<AgentEvent> events = new ArrayList<>();
        router.execute(request).forEachRemaining(events::add);
        List<String> logged =
                events.stream().filter(AgentEvent::hasLog).map(event -> event.getLog().getText()).toList();
        assertEquals(List.of("hello from Java"), logged);
        assertEquals(
                Outcome.OUTCOME_SUCCEEDED, events.get(events.size() - 1).getResult().getOutcome());
    }

    @Test
    void tellsWhyACallIsRejected() throws Exception {
        ExecuteRequest request =
                ExecuteRequest.newBuilder().setAdapter("no_such_adapter").build();
        StatusRuntimeException rejected =
                assertThrows(StatusRuntimeException.class, () -> router.execute(request).hasNext());
        ErrorInfo info = StatusProto.fromThrowable(rejected).getDetailsList().stream()
                .filter(detail -> detail.is(ErrorInfo.class))
                .findFirst()
                .orElseThrow()
                .unpack(ErrorInfo.class);
        assertEquals("ADAPTER_NOT_FOUND", info.getReason());
        assertEquals("dragoman", info.getDomain());
    }
}
