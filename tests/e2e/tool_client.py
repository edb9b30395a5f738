# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of the tools in a process of its own, as the directory of a process tells what it may be told of.

`python tool_client.py LAYER TOOL ARGUMENTS`: for each number that it reads, it calls the tool so many times and prints
the first lines of the answers as JSON.  It reads the settings layer as a CLI does, and like one calls again what was
lost with the connection.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

AT_ONCE = 8


def main(layer: str, tool: str, arguments: str) -> None:
    server = json.loads(Path(layer).read_text())["mcpServers"]["emacs"]
    url = urlsplit(str(server["httpUrl"]))
    params = {"name": tool, "arguments": json.loads(arguments)}
    headers = {**server["headers"], "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def call(identifier: int) -> str:
        message = {"jsonrpc": "2.0", "id": identifier, "method": "tools/call", "params": params}
        while True:
            connection = HTTPConnection(url.netloc, timeout=server["timeout"] / 1000)
            try:
                connection.request("POST", url.path, json.dumps(message).encode(), headers)
                answer = json.loads(connection.getresponse().read())
            except (ConnectionError, HTTPException):
                continue
            finally:
                connection.close()
            assert answer["id"] == identifier
            return answer["result"]["content"][0]["text"].partition("\n")[0]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for line in sys.stdin:
            print(json.dumps(list(threads.map(call, range(int(line))))), flush=True)


main(*sys.argv[1:])
