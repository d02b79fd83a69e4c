"""Receives spans over gRPC, sends a chat with a traceparent, and checks what came: otlp_receiver.py PORT BASE."""
import concurrent.futures
import json
import sys
import time
import urllib.request

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT = "b7ad6b7169203331"
spans = {}


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        for resource in request.resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            assert names["service.name"] == "camshaft", names
            for scope in resource.scope_spans:
                spans.update((span.name, span) for span in scope.spans if span.trace_id.hex() == TRACE)
        return trace_service_pb2.ExportTraceServiceResponse()


def value(of):
    kind = of.WhichOneof("value")
    return [value(one) for one in of.array_value.values] if kind == "array_value" else getattr(of, kind)


def attributes(name):
    return {a.key: value(a.value) for a in spans[name].attributes}


def main(port, base):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
    assert server.add_insecure_port(f"127.0.0.1:{port}"), "the port is taken"
    server.start()
    body = {"model": "demo", "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "What is 3 plus 4?"}]}
    headers = {"content-type": "application/json", "traceparent": f"00-{TRACE}-{CLIENT}-01", "x-request-id": "traced-1"}
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        assert response.read().endswith(b"data: [DONE]\n\n")
    server_span = "POST /v1/chat/completions"
    expected = {server_span, "auth", "validate", "queue", "prefill", "decode", "stream"}
    begun = time.monotonic()
    while set(spans) != expected and time.monotonic() - begun < 60:
        time.sleep(0.1)
    assert set(spans) == expected, set(spans)
    accept = spans[server_span]
    assert accept.parent_span_id.hex() == CLIENT
    for name in expected - {server_span}:
        span = spans[name]
        assert span.parent_span_id == accept.span_id, name
        assert accept.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano, name
        assert span.end_time_unix_nano <= accept.end_time_unix_nano, name
    order = [spans[name].start_time_unix_nano for name in ("auth", "validate", "queue", "prefill", "decode")]
    assert order == sorted(order), order
    found = attributes(server_span)
    wanted = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "camshaft.request_id": "traced-1",
        "camshaft.tenant": "anonymous",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert {key: found[key] for key in wanted} == wanted, found
    assert found["gen_ai.usage.input_tokens"] == attributes("prefill")["camshaft.prompt_tokens"] > 5
    assert attributes("prefill")["camshaft.cached_tokens"] == 0
    assert attributes("decode")["camshaft.generated_tokens"] == 8
    assert attributes("queue")["camshaft.choice"] == 0
    print("all checks passed")


main(int(sys.argv[1]), sys.argv[2])
