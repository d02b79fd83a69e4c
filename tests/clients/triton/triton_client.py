"""Conformance to Triton's own Python client over HTTP. Arguments: host:port, a good key."""
import sys

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

address, key = sys.argv[1:3]
auth = {"authorization": f"Bearer {key}"}
client = InferenceServerClient(address)


def refused(status, words, act):
    try:
        act()
    except InferenceServerException as error:
        assert error.status() == str(status), error
        assert words in error.message(), error
        return
    raise AssertionError(f"nothing was raised: {status} {words}")


def tensor(rows, binary, name="x", kind="FP32"):
    data = np.array(rows, dtype=np.float32 if kind == "FP32" else np.int64)
    made = InferInput(name, list(data.shape), kind)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


assert client.is_server_live() and client.is_server_ready()
assert client.is_model_ready("linear", headers=auth)
assert client.is_model_ready("linear", "1", headers=auth)
assert not client.is_model_ready("none", headers=auth)
assert not client.is_model_ready("linear", "2", headers=auth)
server = client.get_server_metadata(headers=auth)
assert server["name"] == "camshaft" and "binary_tensor_data" in server["extensions"], server
model = client.get_model_metadata("linear", headers=auth)
assert model["versions"] == ["1"] and model["platform"] == "tract_onnx", model
assert model["inputs"] == [{"name": "x", "shape": [-1, 3], "datatype": "FP32"}], model
assert [one["name"] for one in client.get_model_repository_index(headers=auth)] == ["linear", "lookup", "two", "slow"]

rows, expected = [[1, 2, 3], [0, 0, 1]], np.array([[14.5, 31.5], [3.5, 5.5]], dtype=np.float32)
for binary_in in (False, True):
    for outputs in (None, [InferRequestedOutput("y", binary_data=False)], [InferRequestedOutput("y", binary_data=True)]):
        answer = client.infer("linear", [tensor(rows, binary_in)], outputs=outputs, request_id="7", headers=auth)
        assert np.array_equal(answer.as_numpy("y"), expected), answer.get_response()
        assert answer.as_numpy("y").dtype == np.float32
        head = answer.get_response()
        assert (head["id"], head["model_name"], head["model_version"]) == ("7", "linear", "1"), head
large = np.random.default_rng(1).normal(size=(5000, 3)).astype(np.float32)
answer = client.infer("linear", [tensor(large, True)], model_version="1", headers=auth)
weights = np.array([[1, 4], [2, 5], [3, 6]], dtype=np.float32)
assert np.allclose(answer.as_numpy("y"), large @ weights + np.array([0.5, -0.5]), atol=1e-4)
two = client.infer("two", [tensor([[1, 2]], True, "a"), tensor([[3, 4]], False, "b")], headers=auth)
assert two.as_numpy("sum").tolist() == [[4, 6]] and two.as_numpy("product").tolist() == [[3, 8]]
one = client.infer("two", [tensor([[1, 2]], True, "a"), tensor([[3, 4]], True, "b")],
                   outputs=[InferRequestedOutput("product")], headers=auth)
assert [output["name"] for output in one.get_response()["outputs"]] == ["product"]
ids = client.infer("lookup", [tensor([2, 0], True, "ids", "INT64")], headers=auth)
assert ids.as_numpy("y").tolist() == [[4, 5], [0, 1]]
waiting = [client.async_infer("linear", [tensor([[n, 0, 0]], True)], headers=auth) for n in range(8)]
assert [pending.get_result().as_numpy("y")[0][0] for pending in waiting] == [n + 0.5 for n in range(8)]
packed = client.infer("linear", [tensor(rows, True)], response_compression_algorithm="gzip", headers=auth)
assert np.array_equal(packed.as_numpy("y"), expected)

infer = client.infer
refused(400, "axis 1 of input x must be 3, got 2", lambda: infer("linear", [tensor([[1, 2]], True)], headers=auth))
refused(400, "must be FP32, got INT64", lambda: infer("linear", [tensor([[1, 2, 3]], True, "x", "INT64")], headers=auth))
refused(400, "no input w", lambda: infer("linear", [tensor([[1, 2, 3]], True, "w")], headers=auth))
refused(400, "cannot compute", lambda: infer("lookup", [tensor([7], True, "ids", "INT64")], headers=auth))
refused(400, "no output z", lambda: infer("linear", [tensor(rows, True)], outputs=[InferRequestedOutput("z")], headers=auth))
refused(404, "does not exist", lambda: infer("none", [tensor(rows, True)], headers=auth))
refused(404, "no version 3", lambda: client.get_model_metadata("linear", "3", headers=auth))
refused(401, "", lambda: infer("linear", [tensor(rows, True)]))
refused(401, "", lambda: client.get_model_metadata("linear"))
sequence = lambda: infer("linear", [tensor(rows, True)], sequence_id=9, sequence_start=True, headers=auth)
refused(400, "parameters.sequence_id is not supported", sequence)
refused(504, "deadline", lambda: infer("slow", [tensor(np.zeros((1, 100_000)), True, "s0")], timeout=1, headers=auth))
print("all checks passed")
