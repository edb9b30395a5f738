// SPDX-License-Identifier: GPL-3.0-or-later

// Preloaded into a daemon: the first request whose method and path match
// HELD_REQUEST is never answered.  The file HELD_FILE says that it has come.

"use strict";

const fs = require("node:fs");
const { Server } = require("node:http");

const { HELD_REQUEST, HELD_FILE } = process.env;
const { emit } = Server.prototype;
Server.prototype.emit = function (event, request, ...rest) {
  if (event === "request" && RegExp(HELD_REQUEST).test(`${request.method} ${request.url}`) && !fs.existsSync(HELD_FILE)) {
    fs.writeFileSync(HELD_FILE, String(process.pid));
    return true;
  }
  return emit.call(this, event, request, ...rest);
};
