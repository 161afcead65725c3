"""What a vLLM server is sent and what its answers become, with a server of canned answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from phloem import SampleConfig, VLLMConfig
from phloem.sample import SampleError
from phloem.sample.requests import Reply, Request
from phloem.sample.vllm_server import ServerEngine
from phloem.sample.vllm_worker import WeightReceiver

COMPLETION = {"token_ids": [7, 8], "logprobs": {"token_logprobs": [-0.5, -1.5]}, "finish_reason": "stop"}


class Canned(ThreadingHTTPServer):
    """Answers each path from a table of (status, body); keeps what it was sent, and the weights it was shown."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/models": (200, {"data": [{"id": "served", "max_model_len": 99}]}),
            "/v1/completions": (200, {"choices": [COMPLETION]}),
            "/collective_rpc": (200, {"results": [None]}),
            "/reset_prefix_cache": (200, {"success": True}),
        }
        self.sent: list[tuple[str, Any]] = []
        self.weights: dict[str, torch.Tensor] = {}

    def bodies(self, path: str) -> list[Any]:
        return [body for sent, body in self.sent if sent == path]


class _Handler(BaseHTTPRequestHandler):
    server: Canned

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        self.server.sent.append((self.path, body))
        if self.path == "/collective_rpc":
            for file in sorted(Path(body["args"][0]).glob("*.safetensors")):
                self.server.weights |= load_file(file)
        status, answer = self.server.answers[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Canned]:
    with Canned() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def engine(server: Canned, **vllm: Any) -> ServerEngine:
    settings = VLLMConfig(url=f"http://127.0.0.1:{server.server_port}/", timeout=5, **vllm)
    return ServerEngine(SampleConfig(engine="vllm-server", temperature=0.7, vllm=settings), (1, 3))


def request(branch=(0,), until: str | None = "</k>") -> Request:
    return Request(0, branch, (5, 6), 9, until, 12345)


def replies(own: ServerEngine, first: list[Request], then=lambda request, reply: ()) -> list[Reply]:
    found: list[Reply] = []

    def keep(request: Request, reply: Reply):
        found.append(reply)
        return then(request, reply)

    own.run(first, keep)
    return found


def test_ids_go_in_and_come_out(server):
    own = engine(server)
    assert own.context == 99
    assert replies(own, [request()]) == [Reply([7, 8], [-0.5, -1.5], True)]
    (body,) = server.bodies("/v1/completions")
    expected = {
        "model": "served",
        "prompt": [5, 6],
        "max_tokens": 9,
        "seed": 12345,
        "stop": ["</k>"],
        "stop_token_ids": [1, 3],
        "ignore_eos": True,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    assert expected.items() <= body.items()


def test_requests_that_follow_are_served_too(server):
    def then(own: Request, reply: Reply) -> list[Request]:
        return [request((0, i), None) for i in range(3)] if len(own.branch) == 1 else []

    assert len(replies(engine(server), [request(), request((1,))], then)) == 2 + 2 * 3
    assert sum(body["stop"] == [] for body in server.bodies("/v1/completions")) == 6


@pytest.mark.parametrize(
    ("choice", "reply"),
    [
        ({"token_ids": None}, Reply([], [-0.5, -1.5], True)),
        ({"logprobs": None}, Reply([7, 8], [], True)),
        ({"finish_reason": "length"}, Reply([7, 8], [-0.5, -1.5], False)),
    ],
)
def test_what_is_missing_stays_missing(server, choice, reply):
    """No text is encoded again and no logprob is made up; `read_segment` then refuses the reply."""
    server.answers["/v1/completions"] = (200, {"choices": [COMPLETION | choice]})
    assert replies(engine(server), [request()]) == [reply]


def test_probes_read_the_logprob_of_each_given_token(server):
    steps = [None, {"6": {"logprob": -2.0}}, {"4": {"logprob": -3.0}, "9": {"logprob": -0.1}}]
    server.answers["/v1/completions"] = (200, {"choices": [COMPLETION | {"prompt_logprobs": steps}]})
    assert engine(server).logprobs([[5, 6, 4]]) == [[-2.0, -3.0]]
    server.answers["/v1/completions"] = (200, {"choices": [COMPLETION]})
    with pytest.raises(SampleError, match="no prompt_logprobs"):
        engine(server).logprobs([[5, 6, 4]])


def test_weights_pass_through_the_folder_and_the_cache_is_dropped(server, tmp_path, monkeypatch):
    monkeypatch.setattr("phloem.sample.vllm_server._FILE_BYTES", 20)
    weights = {f"w{i}": torch.randn(3, i + 1) for i in range(4)}
    engine(server, weights_folder=str(tmp_path)).push((n, t.t()) for n, t in weights.items())
    assert server.weights.keys() == weights.keys()
    assert all(torch.equal(server.weights[name], weights[name].t()) for name in weights)
    assert [path for path, _ in server.sent[1:]] == ["/collective_rpc", "/reset_prefix_cache"]
    assert server.bodies("/collective_rpc")[0]["method"] == "receive_weights"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (
            "/collective_rpc",
            (404, {"detail": "Not Found"}),
            r"answered 404: .*VLLM_SERVER_DEV_MODE=1.*worker-extension",
        ),
        ("/collective_rpc", (500, "no such method"), r"answered 500: .*no such method.*--worker-extension-cls"),
        ("/reset_prefix_cache", (200, {"success": False}), "kept its prefix cache.*server of its own"),
    ],
)
def test_a_server_that_does_not_take_weights_is_refused(server, path, answer, message):
    server.answers[path] = answer
    with pytest.raises(SampleError, match=message):
        engine(server).push([("w", torch.zeros(2))])


def test_a_folder_that_is_none_is_refused(server, tmp_path):
    with pytest.raises(SampleError, match=r"sample\.vllm\.weights_folder .* is no folder"):
        engine(server, weights_folder=str(tmp_path / "nowhere")).push([])


def test_a_request_that_fails_ends_the_call_with_its_reason(server):
    server.answers["/v1/completions"] = (400, {"error": {"message": "too long"}})
    with pytest.raises(SampleError, match=r"answered 400: .*too long"):
        replies(engine(server), [request((i,)) for i in range(5)])


def test_an_address_that_is_none_is_refused():
    with pytest.raises(SampleError, match=r"no answer from somewhere/v1/models .*sample\.vllm\.url"):
        ServerEngine(SampleConfig(engine="vllm-server", vllm=VLLMConfig(url="somewhere")), ())


def test_the_worker_packs_tied_layers_again(tmp_path):
    """vLLM's reload leaves a packed copy of a tied head as it was."""

    class Layer(torch.nn.Module):
        def __init__(self, weight: torch.nn.Parameter) -> None:
            super().__init__()
            self.weight, self.packed, self.quant_method = weight, weight.detach().clone(), self

        def process_weights_after_loading(self, layer: Layer) -> None:
            layer.packed = layer.weight.detach().clone()

    class Runner:
        def __init__(self) -> None:
            self.model = torch.nn.Module()
            self.model.embedding = Layer(torch.nn.Parameter(torch.zeros(2, 3)))
            self.model.head = Layer(self.model.embedding.weight)

        def get_model(self) -> torch.nn.Module:
            return self.model

        def reload_weights(self, weights_iterator) -> None:
            for _, tensor in weights_iterator:
                self.model.embedding.weight.data.copy_(tensor)
            self.model.embedding.process_weights_after_loading(self.model.embedding)

    worker = WeightReceiver()
    worker.model_runner = Runner()
    for weight in (torch.ones(2, 3), torch.full((2, 3), 2.0)):
        save_file({"embedding": weight}, tmp_path / "0.safetensors")
        worker.receive_weights(str(tmp_path))
        assert torch.equal(worker.model_runner.model.head.packed, weight)
