#!/usr/bin/env python3
"""Serves an ONNX model with onnxruntime's defaults behind a minimal aiohttp server: what `cargo xtask bench predict` compares with.

POST /predict takes {"input": nested lists} for a model of one input, and answers in Camshaft's shapes, so that both servers read and
write the same. GET /healthz answers 200. Prints its address when it is ready. Needs: pip install onnxruntime aiohttp numpy.

    onnx_server.py MODEL              # computes on the thread of the event loop
    onnx_server.py MODEL --threads    # computes on the event loop's threads, while it reads other requests
"""
import argparse
import asyncio
import time

import numpy as np
import onnxruntime
from aiohttp import web

DATATYPES = {"tensor(float)": ("FP32", np.float32), "tensor(double)": ("FP64", np.float64),
             "tensor(int64)": ("INT64", np.int64), "tensor(int32)": ("INT32", np.int32)}


async def main(arguments):
    session = onnxruntime.InferenceSession(arguments.model)
    (taken,) = session.get_inputs()
    given = session.get_outputs()
    _, dtype = DATATYPES[taken.type]

    def compute(numbers):
        began = time.perf_counter()
        outputs = session.run(None, {taken.name: numbers})
        return outputs, (time.perf_counter() - began) * 1e3

    async def predict(request):
        body = await request.json()
        numbers = np.array(body["input"], dtype=dtype)
        if arguments.threads:
            outputs, took = await asyncio.to_thread(compute, numbers)
        else:
            outputs, took = compute(numbers)
        named = {
            spec.name: {"shape": output.shape, "datatype": DATATYPES[spec.type][0], "data": output.ravel().tolist()}
            for spec, output in zip(given, outputs)
        }
        answer = {"model": "m", "outputs": named, "inference_ms": took}
        if len(outputs) == 1:
            answer["output"] = outputs[0].tolist()
        return web.json_response(answer)

    async def healthy(_):
        return web.Response(text="ok")

    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/predict", predict), web.get("/healthz", healthy)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print("listening on http://%s:%d" % runner.addresses[0][:2], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", action="store_true")
    asyncio.run(main(parser.parse_args()))
