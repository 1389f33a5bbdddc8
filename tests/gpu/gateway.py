"""A running `tidegate`, for the checks and the measurement over HTTP."""

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path


class Gateway:
    """Serves the folders of `models` (name to path) until the block ends; `engine` are keys of that config table."""

    def __init__(self, program, models, backend, engine):
        self.program, self.models, self.backend, self.engine = program, models, backend, engine

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        config = Path(self.folder.name) / "tidegate.toml"
        config.write_text(self.config())
        self.log = open(Path(self.folder.name) / "log", "w+b")
        command = [self.program, "--config", str(config), "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.wait_until_ready()
        return self

    def config(self):
        # With the kernels that others have compiled: they are in the folder `cuda` of a cache.
        kernels = os.environ.get("TIDEGATE_GPU_CACHE")
        cache = str(Path(kernels).parent) if kernels else self.folder.name
        lines = [f"cache_dir = {json.dumps(cache)}", "[compute]", f'backend = "{self.backend}"', "[engine]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in self.engine.items()]
        lines += ["[pipeline]"]
        for name, path in self.models.items():
            lines += ["[[models]]", f"name = {json.dumps(name)}", f"path = {json.dumps(str(path))}"]
        return "\n".join(lines) + "\n"

    def wait_until_ready(self):
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"tidegate ended with {self.process.returncode}:\n{self.said()}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def complete(self, body):
        """The whole answer to a completion."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {text.decode(errors='replace')}")
        return json.loads(text)

    def generated(self, model):
        """Tokens that the model has generated since the start."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        name = f'tidegate_engine_generation_tokens_total{{model="{model}"}} '
        lines = connection.getresponse().read().decode().splitlines()
        return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0)

    def stream(self, body):
        """As `complete`, over events; gives the number of tokens that the usage names, and those of the prompt."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read().decode(errors='replace')}")
        end = b""
        while piece := response.read1(1 << 16):
            end = (end + piece)[-8192:]
        usage = [line for line in end.decode(errors="replace").splitlines() if '"usage":{' in line]
        if not usage:
            raise SystemExit(f"a stream ended without its usage: {end[-500:]!r}")
        return json.loads(usage[-1].removeprefix("data: "))["usage"]

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.folder.cleanup()
