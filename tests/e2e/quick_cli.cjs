// SPDX-License-Identifier: GPL-3.0-or-later

// Preloaded into all CLIs and daemons of the tests, to take less processor time.

"use strict";

const childProcess = require("node:child_process");
const { registerHooks, syncBuiltinESMExports } = require("node:module");

// Leave out the compiler for what runs long: they end so soon that it takes
// more time than it saves, a fifth of their first answer.
require("node:v8").setFlagsFromString("--no-turbofan");

// A daemon drops the variable that preloads this, and with it its agents'.
const { NODE_OPTIONS } = process.env;
const { spawn } = childProcess;
childProcess.spawn = (command, args, options) =>
  Array.isArray(args) && args.includes("--acp")
    ? spawn(command, args, { ...options, env: { ...options.env, NODE_OPTIONS } })
    : spawn(command, args, options);
syncBuiltinESMExports();

// Before its first question to the model, Qwen Code compiles the schema of each
// tool, with a new validator for each, which compiles the schema of schemas
// first: a fifth of the time until its first answer.  One validator does the
// same.  A version without these lines runs as it is.
const NEW_VALIDATOR =
  /const strictAjv = (isDraft2020Uri\(\s*schema\.\$schema\s*\)) \? new Ajv2020Class\(strictOptions\) : new AjvClass\(strictOptions\);\s*addFormatsFunc\(strictAjv\);/;
const SAME_VALIDATOR = `
    const strictAjv = (SchemaValidator.ofTests ??= [AjvClass, Ajv2020Class].map((validator) => {
      const ajv = new validator(strictOptions);
      addFormatsFunc(ajv);
      return ajv;
    }))[Number($1)];`;

// Hundreds of modules of one folder import each other; Node.js looks for each
// as if it could be a link or of another kind.
const PART = /^\.{1,2}\/[\w./-]+\.js$/;
const BUNDLE = /\/node_modules\/@qwen-code\/qwen-code\/(?:chunks\/)?[\w.-]+\.js$/;

registerHooks({
  resolve(specifier, context, nextResolve) {
    const { parentURL } = context;
    if (!BUNDLE.test(parentURL ?? "") || !PART.test(specifier) || !context.conditions.includes("import")) {
      return nextResolve(specifier, context);
    }
    return { url: new URL(specifier, parentURL).href, format: "module", shortCircuit: true };
  },
  load(url, context, nextLoad) {
    const loaded = nextLoad(url, context);
    if (loaded.format !== "module" || !loaded.source || !Buffer.from(loaded.source).includes("compileStrict(schema)")) {
      return loaded;
    }
    return { ...loaded, source: loaded.source.toString().replace(NEW_VALIDATOR, SAME_VALIDATOR) };
  },
});
