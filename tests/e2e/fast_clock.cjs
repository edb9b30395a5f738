// SPDX-License-Identifier: GPL-3.0-or-later

// Preloaded into the CLI by test_connection.py: makes the clock of its HTTP
// client, undici, run FASTER times as fast, so that fifteen minutes of silence
// take a minute.  undici measures its time-outs of more than a second by
// counting ticks of 499 ms, as long as it waits for anything.  When SILENCE_MS
// have gone by on that clock, a byte is written to the pipe named by
// QWEN_COMPANION_E2E_CLOCK.

"use strict";

const fs = require("node:fs");

const TICK_MS = 499;
const FASTER = 16;
const SILENCE_MS = 15 * 60 * 1000;

let clock = 0;

function counted(tick) {
  return (...args) => {
    const before = clock;
    clock += TICK_MS;
    if (before < SILENCE_MS && clock >= SILENCE_MS) {
      fs.appendFileSync(process.env.QWEN_COMPANION_E2E_CLOCK, ".");
    }
    return tick(...args);
  };
}

// A proxy keeps what hangs on the function, such as its promisified form.
globalThis.setTimeout = new Proxy(globalThis.setTimeout, {
  apply(target, self, [callback, delay, ...args]) {
    return delay === TICK_MS
      ? Reflect.apply(target, self, [counted(callback), TICK_MS / FASTER, ...args])
      : Reflect.apply(target, self, [callback, delay, ...args]);
  },
});
