// SPDX-License-Identifier: GPL-3.0-or-later
// The relay: runs where CLIs run that another machine's Emacs serves, and carries their connections over its standard
// input and output.  It is sent over that pipe and never a file there.  What it lays down it removes at its end.
//
// When the pipe breaks, it goes on without: CLIs that connect meanwhile are held, unread.  The relay of the next pipe
// finds it by a socket, and only passes the bytes on.  So a broken line costs CLIs nothing.
//
// `require` and `rest`, the bytes after the source, are given by the bootstrap in commands.py; before the source, it
// has `KEEP`: the `id` of the place in this Emacs, and after how many `seconds` without a pipe it ends.
"use strict";
const fs = require("fs"), net = require("net"), os = require("os"), path = require("path");
const { execFile } = require("child_process");

const VERSION = 1;
const KINDS = { hello: 0, open: 1, data: 2, end: 3, credit: 4, reset: 5, request: 6, reply: 7, event: 8, ping: 9 };
const HEAD = 9;
const PIECE = 64 * 1024; // largest data in a frame
const WINDOW = 256 * 1024; // bytes of a stream on their way in one direction
const MAX_REQUEST = 4 * 1024 * 1024;
const MAX_READ = 1024 * 1024;
const QUIET_MS = 45000; // without any frame from Emacs for so long, the pipe is broken
const GATHER_MS = 20; // changes of files in this time are told together
const MAX_HELD = 100; // connections while there is no pipe
const POLL_MS = 1000; // where the system does not tell of changes

// --- Frames

let channel = null; // where Emacs is, a pair of streams; null while the pipe is broken

function send(id, kind, payload = Buffer.alloc(0)) {
    if (channel === null) return;
    const frame = Buffer.allocUnsafe(HEAD + payload.length);
    frame.writeUInt32BE(id, 0);
    frame.writeUInt8(kind, 4);
    frame.writeUInt32BE(payload.length, 5);
    payload.copy(frame, HEAD);
    channel.output.write(frame);
}

const json = (value) => Buffer.from(JSON.stringify(value));

let unread = Buffer.alloc(0);

function receive(data) {
    unread = Buffer.concat([unread, data]);
    while (unread.length >= HEAD) {
        const length = unread.readUInt32BE(5);
        if (length > MAX_REQUEST) return detach();
        if (unread.length < HEAD + length) return;
        const [id, kind, payload] = [unread.readUInt32BE(0), unread.readUInt8(4), unread.subarray(HEAD, HEAD + length)];
        unread = unread.subarray(HEAD + length);
        quietTimer.refresh();
        if (kind === KINDS.request) answer(id, payload);
        else if (kind === KINDS.ping) send(0, KINDS.ping);
        else if (streams.has(id)) take(streams.get(id), kind, payload);
    }
}

// --- Connections of CLIs: what they send is read only as far as there is credit for it

const streams = new Map();
let lastStream = 0;

const held = [];

function accept(socket) {
    socket.on("error", () => {});
    if (channel === null) {
        if (held.length < MAX_HELD) held.push(socket);
        else socket.destroy();
        return;
    }
    const who = identify(socket);
    if (who === null) return socket.destroy(); // another user's
    const stream = { id: ++lastStream, socket, credit: WINDOW, consumed: 0 };
    streams.set(stream.id, stream);
    socket.setNoDelay(true);
    send(stream.id, KINDS.open, json(who));
    socket.on("readable", () => pump(stream));
    socket.on("end", () => send(stream.id, KINDS.end));
    socket.on("close", () => {
        if (streams.delete(stream.id)) send(stream.id, KINDS.reset);
    });
}

function pump(stream) {
    for (;;) {
        const size = Math.min(stream.credit, PIECE, stream.socket.readableLength);
        if (size === 0) {
            if (stream.credit > 0) stream.socket.read(0);
            return;
        }
        stream.credit -= size;
        send(stream.id, KINDS.data, stream.socket.read(size));
    }
}

function take(stream, kind, payload) {
    if (kind === KINDS.data) {
        stream.socket.write(payload, () => {
            stream.consumed += payload.length;
            if (stream.consumed < PIECE / 2 && stream.socket.writableLength > 0) return;
            const credit = Buffer.alloc(4);
            credit.writeUInt32BE(stream.consumed, 0);
            stream.consumed = 0;
            if (streams.has(stream.id)) send(stream.id, KINDS.credit, credit);
        });
    } else if (kind === KINDS.end) {
        stream.socket.end();
    } else if (kind === KINDS.credit) {
        stream.credit += payload.readUInt32BE(0);
        pump(stream);
    } else if (kind === KINDS.reset) {
        streams.delete(stream.id);
        stream.socket.destroy();
    }
}

// --- Who calls: the process at the other end, as /proc has it

const recent = [];

function identify(socket) {
    let found;
    try {
        found = socketOf(socket.remotePort, socket.localPort);
    } catch {
        return {}; // no /proc
    }
    if (found === undefined) return {};
    if (found.uid !== process.getuid() && found.uid !== 0) return null;
    const pids = [...recent, ...fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name)).reverse()];
    const pid = pids.find((candidate) => holds(candidate, `socket:[${found.inode}]`));
    if (pid === undefined) return {};
    if (!recent.includes(pid)) recent.splice(0, recent.length, pid, ...recent.slice(0, 7));
    return describe(pid);
}

function socketOf(port, own) {
    const hex = (number) => number.toString(16).toUpperCase().padStart(4, "0");
    for (const line of fs.readFileSync("/proc/net/tcp", "latin1").split("\n")) {
        const fields = line.trim().split(/\s+/);
        if (fields.length > 9 && fields[1].endsWith(`:${hex(port)}`) && fields[2].endsWith(`:${hex(own)}`)) {
            return { uid: Number(fields[7]), inode: fields[9] };
        }
    }
    return undefined;
}

function holds(pid, target) {
    try {
        return fs.readdirSync(`/proc/${pid}/fd`).some((name) => {
            try {
                return fs.readlinkSync(`/proc/${pid}/fd/${name}`) === target;
            } catch {
                return false;
            }
        });
    } catch {
        return false;
    }
}

function describe(pid) {
    try {
        const read = (name) => fs.readFileSync(`/proc/${pid}/${name}`, "utf8");
        const directory = fs.readlinkSync(`/proc/${pid}/cwd`);
        const scripts = read("cmdline").split("\0").slice(1).filter((word) => word && !word.startsWith("-"));
        const script = scripts.map((word) => path.resolve(directory, word)).find(isFile);
        const terminal = /(?:^|\0)QWEN_COMPANION_TERMINAL=(\d{1,9})\0/.exec(read("environ"));
        return {
            pid: Number(pid),
            started: startOf(pid),
            directory,
            terminal: terminal === null ? null : Number(terminal[1]),
            ...(script === undefined ? {} : packageOf(fs.realpathSync(script))),
        };
    } catch {
        return {};
    }
}

function startOf(pid) {
    return fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(")").pop().trim().split(" ")[19];
}

function isFile(name) {
    try {
        return fs.statSync(name).isFile();
    } catch {
        return false;
    }
}

function packageOf(program) {
    for (let folder = path.dirname(program); path.basename(folder) !== "node_modules"; folder = path.dirname(folder)) {
        try {
            const { name, version } = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
            if (name) return { name, version };
        } catch {
            // not here
        }
        if (folder === path.dirname(folder)) break;
    }
    return {};
}

// --- Files laid down here: the discovery file, the settings layer, the variables of terminals

const home = os.homedir();
const folder = path.join(process.env.QWEN_HOME || path.join(home, ".qwen"), "ide");
const made = [];
const laid = new Set();
const OURS = /^(?:emacs-|\.emacs-)(\d+)-(\d+)\.[\w.]+$/; // process and its start

function start() {
    try {
        return startOf("self");
    } catch {
        return "0";
    }
}

function prepare() {
    for (const name of [path.dirname(folder), folder]) {
        if (!fs.existsSync(name)) {
            fs.mkdirSync(name, { mode: 0o700 });
            made.unshift(name);
        }
    }
    const found = fs.lstatSync(folder);
    if (!found.isDirectory() || found.uid !== process.getuid() || found.mode & 0o022) {
        throw new Error(`${folder} is not a directory of this user alone`);
    }
}

function lay({ kind, port, text }) {
    prepare();
    const own = `emacs-${process.pid}-${start()}`;
    const name = path.join(folder, kind === "lock" ? `${port}.lock` : `${own}.${kind}`);
    const temporary = path.join(folder, `.${own}.${kind}`);
    laid.add(temporary);
    try {
        fs.writeFileSync(temporary, text, { mode: 0o600, flag: "wx" });
        fs.renameSync(temporary, name);
        laid.add(name);
    } finally {
        fs.rmSync(temporary, { force: true });
        laid.delete(temporary);
    }
    return { path: name };
}

// Remove what a relay has left that was killed.  A discovery file says whose it is by `emacsRelay`.
function clear() {
    let names = [];
    try {
        names = fs.readdirSync(folder);
    } catch {
        return;
    }
    for (const name of names) {
        const file = path.join(folder, name);
        try {
            let owner = OURS.exec(name);
            if (name.endsWith(".lock")) {
                const mark = JSON.parse(fs.readFileSync(file, "utf8")).emacsRelay;
                owner = mark && [name, String(mark.pid), String(mark.started)];
            }
            if (owner && !lives(owner[1], owner[2])) fs.unlinkSync(file);
        } catch {
            // not ours, or gone
        }
    }
}

function lives(pid, started) {
    try {
        return startOf(pid) === started;
    } catch {
        if (fs.existsSync("/proc/self/stat")) return false;
    }
    try {
        process.kill(Number(pid), 0);
        return true;
    } catch (error) {
        return error.code === "EPERM";
    }
}

function attach(input, output) {
    detach();
    channel = { input, output };
    unread = Buffer.alloc(0);
    clearTimeout(lingerTimer);
    quietTimer.refresh();
    for (const stream of [input, output]) {
        for (const event of ["end", "error", "close"]) {
            stream.on(event, () => {
                if (channel !== null && channel.input === input) detach();
            });
        }
    }
    send(0, KINDS.hello, json({
        version: VERSION, pid: process.pid, started: start(), home, folder, node: path.dirname(process.execPath),
        layer: process.env.QWEN_CODE_SYSTEM_DEFAULTS_PATH || "/etc/qwen-code/system-defaults.json",
    }));
    for (const socket of held.splice(0)) if (!socket.destroyed) accept(socket);
    input.on("data", (data) => {
        if (channel !== null && channel.input === input) receive(data);
    });
}

// Go on without a pipe: what CLIs wait for ends well, and they ask again.
function detach() {
    if (channel === null) return;
    const { input, output } = channel;
    channel = null;
    input.destroy();
    output.destroy();
    for (const stream of streams.values()) stream.socket.end();
    streams.clear();
    lingerTimer = setTimeout(quit, KEEP.seconds * 1000);
    if (!keeper.listening) quit();
}

// The relay that an earlier pipe has left, if there is one, else this one.
function begin() {
    clear();
    const suffix = `.${KEEP.id}.${VERSION}.sock`;
    let names = [];
    try {
        names = fs.readdirSync(folder).filter((name) => OURS.test(name) && name.endsWith(suffix));
    } catch {
        // nothing was laid there
    }
    if (names.length === 0) return keep(suffix);
    const other = net.connect(path.join(folder, names[0]), () => {
        other.write(rest);
        process.stdin.pipe(other);
        other.pipe(process.stdout);
        process.stdin.resume();
    });
    other.on("error", () => keep(suffix));
    other.on("close", () => process.exit(0));
    process.stdout.on("error", () => process.exit(0));
}

function keep(suffix) {
    const name = path.join(folder, `emacs-${process.pid}-${start()}${suffix}`);
    const go = () => {
        attach(process.stdin, process.stdout);
        receive(rest);
        process.stdin.resume();
    };
    keeper.once("error", go); // a name that is too long, for one: then this one ends with the pipe
    try {
        prepare();
        laid.add(name);
        process.umask(0o077);
        keeper.listen(name, go);
    } catch {
        go(); // laying files down will fail too, and tell
    }
}

function quit() {
    for (const name of laid) fs.rmSync(name, { force: true });
    for (const name of made) {
        try {
            fs.rmdirSync(name);
        } catch {
            // others use it
        }
    }
    process.exit(0);
}

// --- Looks at files

function names(file) {
    const spellings = [file];
    let [done, links] = ["/", 0];
    const left = file.split("/").reverse();
    while (left.length > 0) {
        const part = left.pop();
        if (part === "" || part === ".") continue;
        if (part === "..") {
            done = path.dirname(done);
            continue;
        }
        const here = path.join(done, part);
        let target = null;
        try {
            target = fs.readlinkSync(here);
        } catch (error) {
            if (error.code !== "EINVAL" && error.code !== "ENOENT") throw error;
        }
        if (target === null) {
            done = here;
            continue;
        }
        if (++links > 40) throw new Error("too many symbolic links");
        if (target.startsWith("/")) done = "/";
        left.push(...target.split("/").reverse());
        spellings.push(path.join(done, ...left.slice().reverse()));
    }
    if (spellings[spellings.length - 1] !== done) spellings.push(done);
    return spellings;
}

function look(file) {
    const result = { spellings: names(file), kind: null, size: 0, repository: null };
    try {
        const found = fs.statSync(file);
        result.kind = found.isFile() ? "file" : found.isDirectory() ? "directory" : "other";
        result.size = found.size;
    } catch (error) {
        if (error.code !== "ENOENT" && error.code !== "ENOTDIR") throw error;
    }
    return result;
}

function above(directory, markers) {
    for (let place = directory; ; place = path.dirname(place)) {
        if (markers.some((name) => fs.existsSync(path.join(place, name)))) return place;
        if (place === path.dirname(place)) return null;
    }
}

function ignored(repository, files) {
    return new Promise((resolve) => {
        const options = { timeout: 5000, maxBuffer: MAX_REQUEST, env: { ...process.env, GIT_OPTIONAL_LOCKS: "0" } };
        const words = ["-C", repository, "-c", "core.fsmonitor=false", "check-ignore", "--stdin", "-z"];
        const child = execFile("git", words, options, (error, output) => {
            if (error && error.code !== 1) resolve(null);
            else resolve(new Set(output.split("\0")));
        });
        child.stdin.on("error", () => {});
        child.stdin.end(files.join("\0"));
    });
}

function guarded(work, value) {
    try {
        return work(value);
    } catch (error) {
        return { error: error.code || error.message };
    }
}

function text(file) {
    try {
        return { text: readPart(file, 0, PIECE + 1).toString("utf8") };
    } catch (error) {
        return error.code === "ENOENT" || error.code === "ENOTDIR" ? {} : { error: error.code || error.message };
    }
}

function readPart(file, offset, length) {
    const descriptor = fs.openSync(file, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
    try {
        if (!fs.fstatSync(descriptor).isFile()) throw new Error("not a regular file");
        const data = Buffer.alloc(Math.min(length, MAX_READ));
        return data.subarray(0, fs.readSync(descriptor, data, 0, data.length, offset));
    } finally {
        fs.closeSync(descriptor);
    }
}

// --- Watching: one watch for each directory, as a recursive one loses files that are replaced

const watched = new Map();
let wanted = new Set();
const changed = new Set();
let gathering = null;

function note(file) {
    if (!wanted.has(file)) return;
    changed.add(file);
    gathering = gathering || setTimeout(() => {
        gathering = null;
        send(0, KINDS.event, json({ changed: [...changed].slice(0, 1000) }));
        changed.clear();
    }, GATHER_MS);
}

function watch(files) {
    for (const file of wanted) if (!files.includes(file)) fs.unwatchFile(file);
    wanted = new Set(files);
    const directories = new Set(files.map((file) => path.dirname(file)));
    for (const [directory, watcher] of watched) {
        if (!directories.has(directory)) {
            watcher.close();
            watched.delete(directory);
        }
    }
    for (const directory of directories) {
        if (watched.has(directory)) continue;
        try {
            const watcher = fs.watch(directory, { persistent: false }, (_kind, name) => {
                for (const file of wanted) {
                    if (path.dirname(file) === directory && (!name || path.basename(file) === name)) note(file);
                }
            });
            watcher.on("error", () => poll(directory));
            watched.set(directory, watcher);
        } catch {
            poll(directory);
        }
    }
}

function poll(directory) {
    for (const file of wanted) {
        if (path.dirname(file) === directory) {
            fs.watchFile(file, { interval: POLL_MS, persistent: false }, () => note(file));
        }
    }
}

// --- Requests

const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: false }, accept);

const REQUESTS = {
    // Listen on the port that is preferred, else on any.
    serve: ({ port }) => server.listening ? { port: server.address().port } : new Promise((resolve, reject) => {
        server.once("error", () => {
            server.once("error", reject);
            server.listen({ host: "127.0.0.1", port: 0 }, () => resolve({ port: server.address().port }));
        });
        server.listen({ host: "127.0.0.1", port }, () => resolve({ port: server.address().port }));
    }),
    lay,
    look: ({ paths }) => ({ files: paths.map((file) => guarded(look, file)) }),
    texts: ({ paths }) => ({ texts: paths.map(text) }),
    async check({ paths }) {
        const files = paths.map((file) => guarded(look, file));
        const groups = new Map();
        for (const file of files) {
            if (file.error) continue;
            const name = file.spellings[file.spellings.length - 1];
            const repository = guarded((place) => above(path.dirname(place), [".git"]), name);
            file.repository = typeof repository === "string" ? repository : null;
            if (file.repository) groups.set(repository, [...(groups.get(repository) || []), file]);
        }
        for (const [repository, members] of groups) {
            const found = await ignored(repository, members.map((file) => file.spellings[file.spellings.length - 1]));
            for (const file of members) {
                file.ignored = found === null ? null : found.has(file.spellings[file.spellings.length - 1]);
            }
        }
        return { files };
    },
    projects: ({ paths }) => ({
        roots: paths.map((directory) => guarded((name) => {
            const root = above(name, [".git", ".hg", ".svn", ".bzr", "_darcs"]) || name;
            return { root, real: fs.realpathSync(root) };
        }, directory)),
    }),
    read: ({ path: file, offset, length }) => ({ data: readPart(file, offset, length) }),
    watch: ({ paths }) => (watch(paths), {}),
    quit,
};

async function answer(id, payload) {
    let result, data = Buffer.alloc(0);
    try {
        const { name, ...values } = JSON.parse(payload);
        ({ data = data, ...result } = await REQUESTS[name](values));
    } catch (error) {
        result = { error: error.code || error.message };
    }
    const head = json(result);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(head.length, 0);
    send(id, KINDS.reply, Buffer.concat([length, head, data]));
}

// --- Life

let lingerTimer = null;
const quietTimer = setInterval(detach, QUIET_MS);
const keeper = net.createServer((socket) => attach(socket, socket));
process.on("SIGHUP", detach);
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, quit);
process.on("uncaughtException", quit);
begin();
