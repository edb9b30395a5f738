// SPDX-License-Identifier: GPL-3.0-or-later

// Preloaded into all CLIs and daemons of the tests: leaves out the compiler for
// what runs long.  They end so soon that it takes more time than it saves: a
// fifth of their first answer.

"use strict";

require("node:v8").setFlagsFromString("--no-turbofan");
