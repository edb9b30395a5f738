// SPDX-License-Identifier: GPL-3.0-or-later

// Preloaded into the CLIs of which clis.py says so: hides that this machine is
// a container, which they see by two files.

"use strict";

const fs = require("node:fs");

const SIGNS = ["/.dockerenv", "/run/.containerenv"];

const existsSync = fs.existsSync;
fs.existsSync = (path) => !SIGNS.includes(path) && existsSync(path);
