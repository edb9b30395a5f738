// SPDX-License-Identifier: GPL-3.0-or-later
// The relay: runs where CLIs run that another machine's Emacs serves, and carries their connections over its standard
// input and output.  It is sent over that pipe and never a file there.  What it lays down it removes at its end.
//
// When the pipe breaks, it goes on without: CLIs are held, also those that connect meanwhile.  The relay of the next pipe
// finds it by a socket, and only passes the bytes on.  So a broken line costs CLIs nothing.
//
// `require` and `rest`, the bytes after the source, are given by the bootstrap in commands.py; before the source, it
// has `KEEP`: the `id` of the place in this Emacs, after how many `seconds` without a pipe it ends, and after how many,
// `hold`, a CLI has to ask for its stream of events again: of one without a word for five minutes it would give up; and
// `git`, the settings of git.py by which git runs nothing of a repository's.
"use strict";
const crypto = require("crypto"), fs = require("fs"), http = require("http"), net = require("net"), os = require("os"), path = require("path");
const { execFile, execFileSync } = require("child_process");

const VERSION = 6;
const KINDS = { hello: 0, open: 1, data: 2, end: 3, credit: 4, reset: 5, request: 6, reply: 7, event: 8, ping: 9, part: 10 };
const HEAD = 9;
const PIECE = 64 * 1024; // largest data in a frame
const WINDOW = 256 * 1024; // bytes of a stream on their way in one direction
const MAX_REQUEST = 4 * 1024 * 1024;
const MAX_READ = 1024 * 1024;
const QUIET_MS = 45000; // without any frame from Emacs for so long, the pipe is broken
const GATHER_MS = 20; // changes of files in this time are told together
const MAX_STREAMS = 100;
const MAX_STRANGERS = 50; // of them, which have shown no token; of more, the oldest is closed
const MAX_LINEAGE = 30; // processes that are told of a CLI: it and those above it
const EMPTY_STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nretry: 1500\n\n";
const POLL_MS = 1000; // where the system does not tell of changes
const MAX_TREES = 16; // roots whose files are followed
const MAX_FILES = 100000; // below one root
const MAX_WATCHED = 8192; // directories of one root, or of the files that are watched
const MAX_REPOSITORIES = 100; // directly in another one
const MAX_FILE = 64 * 1024 * 1024;
const SENT = 1024 * 1024; // bytes of files in a reply, about
const TOLD = 60; // of a digest and a length
const LISTED = 2 * 1024 * 1024; // bytes of names in a reply, about
const YOUNG_MS = 50; // a file that was changed so lately may change again and have the same time

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

function count(bytes) {
    const payload = Buffer.alloc(8);
    payload.writeBigUInt64BE(BigInt(bytes), 0);
    return payload;
}

let unread = Buffer.alloc(0);
const parts = new Map(); // the beginnings of large requests, by their numbers

function receive(data) {
    unread = Buffer.concat([unread, data]);
    while (unread.length >= HEAD) {
        const length = unread.readUInt32BE(5);
        if (length > MAX_REQUEST) return detach();
        if (unread.length < HEAD + length) return;
        const [id, kind, payload] = [unread.readUInt32BE(0), unread.readUInt8(4), unread.subarray(HEAD, HEAD + length)];
        unread = unread.subarray(HEAD + length);
        quietTimer.refresh();
        if (kind === KINDS.part) parts.set(id, [...(parts.get(id) || []), payload]);
        else if (kind === KINDS.request) answer(id, Buffer.concat([...(parts.get(id) || []), payload]));
        else if (kind === KINDS.ping) send(0, KINDS.ping);
        else if (streams.has(id)) take(streams.get(id), kind, payload);
    }
}

// --- Connections of CLIs.  Both sides of a stream count its bytes and keep those that the other has not taken, so that
// --- it goes on over the next pipe where it was.

const streams = new Map();
let lastStream = 0;
let tokens = [];

function accept(socket) {
    const who = identify(socket), strangers = [...streams.values()].filter((each) => each.isStranger);
    if (who === null) return socket.destroy(); // of another user, or over
    if (strangers.length >= MAX_STRANGERS || streams.size >= MAX_STREAMS) {
        if (strangers.length === 0) return socket.destroy();
        drop(strangers[0]);
    }
    const stream = {
        id: ++lastStream, socket, who,
        isStranger: true, // until it has shown a token
        isOpen: false, // whether Emacs was told of it, over any pipe
        kept: Buffer.alloc(0), // what the CLI has sent, without the `start` bytes of it that Emacs has taken
        start: 0, got: 0, passed: 0, // bytes of Emacs, and those of them that the CLI has taken
        method: "", // of its last request, as "GET "
        answered: true,
    };
    streams.set(stream.id, stream);
    socket.setNoDelay(true);
    socket.on("error", () => {});
    socket.on("readable", () => pump(stream));
    socket.on("end", () => channel === null ? socket.destroy() : send(stream.id, KINDS.end));
    socket.on("close", () => drop(stream));
    if (channel !== null) open(stream);
    pump(stream);
}

function drop({ id, socket }) {
    if (streams.delete(id)) send(id, KINDS.reset);
    socket.destroy();
}

function open(stream) {
    const { id, who, kept, start, got, isOpen, socket } = stream;
    send(id, KINDS.open, json({ ...who, start, got, again: isOpen }));
    stream.isOpen = true;
    sendCredit(stream);
    for (let done = 0; done < kept.length; done += PIECE) send(id, KINDS.data, kept.subarray(done, done + PIECE));
    if (socket.readableEnded) send(id, KINDS.end);
}

function pump(stream) {
    const { socket } = stream;
    while (stream.kept.length < WINDOW) {
        const size = Math.min(WINDOW - stream.kept.length, PIECE, socket.readableLength);
        if (size === 0) return socket.read(0);
        const data = socket.read(size);
        if (stream.answered) Object.assign(stream, { answered: false, method: data.toString("latin1", 0, 4) });
        stream.kept = Buffer.concat([stream.kept, data]);
        if (stream.isStranger) stream.isStranger = !tokens.some((token) => stream.kept.includes(token));
        send(stream.id, KINDS.data, data);
    }
}

function sendCredit(stream) {
    if (streams.has(stream.id)) send(stream.id, KINDS.credit, count(stream.passed));
}

function take(stream, kind, payload) {
    const { socket } = stream;
    if (kind === KINDS.data) {
        stream.answered = true;
        stream.got += payload.length;
        socket.write(payload, () => {
            stream.passed += payload.length;
            sendCredit(stream);
        });
    } else if (kind === KINDS.end) {
        end(stream);
    } else if (kind === KINDS.credit) {
        const count = Number(payload.readBigUInt64BE(0)) - stream.start;
        stream.kept = stream.kept.subarray(Math.max(0, count));
        stream.start += Math.max(0, count);
        pump(stream);
    } else if (kind === KINDS.reset) {
        giveUp(stream) || socket.destroy();
    }
}

function end({ socket }, text = "") {
    socket.removeAllListeners("readable");
    socket.resume();
    socket.end(text);
}

// End what a CLI asks for again; return whether it does.  Were the connection of another request to end, or of a stream
// of events that has not begun, it would take Emacs for gone.
function giveUp(stream) {
    if (!stream.answered && stream.method !== "GET ") return false;
    streams.delete(stream.id);
    end(stream, stream.answered ? "" : EMPTY_STREAM);
    return true;
}

// --- Who calls: the process at the other end, as /proc has it

const recent = [];

function identify(socket) {
    if (!fs.existsSync("/proc/net/tcp")) return {};
    const ports = [socket.remotePort, socket.localPort];
    // A row may be passed over while the table changes.
    const found = socketOf(...ports) ?? socketOf(...ports);
    if (found === undefined || found.inode === "0") return null; // it has ended
    if (found.uid !== process.getuid() && found.uid !== 0) return null;
    const target = `socket:[${found.inode}]`;
    for (const pid of [...recent, ...fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name)).reverse()]) {
        if (!holds(pid, target)) continue;
        // A child has the connection too, for a moment or for good, and may have ended by now.
        const line = lineageOf(pid), end = line.findIndex((each) => !holds(each, target));
        const own = withoutCommand(line.slice(Math.max(end, 1) - 1)), who = describe(own);
        if (who === null) continue;
        if (!recent.includes(own[0])) recent.splice(0, recent.length, own[0], ...recent.slice(0, 7));
        return who;
    }
    return {};
}

// The CLI and those above it, of the program that calls its command hook, the shell in which that runs, and so on.
function withoutCommand(pids) {
    const names = pids.slice(0, 2).map((pid) => path.basename(wordsOf(pid)[0]));
    return names[0] === "curl" ? pids.slice(/^(sh|bash|dash)$/.test(names[1]) ? 2 : 1) : pids;
}

function socketOf(port, own) {
    const hex = (number) => number.toString(16).toUpperCase().padStart(4, "0");
    // A socket of IPv6 reaches 127.0.0.1 as ::ffff:127.0.0.1.
    const tables = ["/proc/net/tcp", "/proc/net/tcp6"].filter((name) => fs.existsSync(name));
    for (const line of tables.flatMap((name) => fs.readFileSync(name, "latin1").split("\n"))) {
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

// What is known of the first of `pids`, which is below the others; null where it has ended.
function describe(pids) {
    const [pid] = pids;
    try {
        const read = (name) => fs.readFileSync(`/proc/${pid}/${name}`, "utf8");
        const directory = fs.readlinkSync(`/proc/${pid}/cwd`);
        const scripts = wordsOf(pid).slice(1).filter((word) => word && !word.startsWith("-"));
        const script = scripts.map((word) => path.resolve(directory, word)).find(isFile);
        const terminal = /(?:^|\0)QWEN_COMPANION_TERMINAL=(\d{1,9})\0/.exec(read("environ"));
        return {
            pids,
            started: startOf(pid),
            directory,
            terminal: terminal === null ? null : Number(terminal[1]),
            prompts: promptsOf(pid) !== undefined,
            ...(script === undefined ? {} : packageOf(fs.realpathSync(script))),
        };
    } catch {
        return null;
    }
}

const wordsOf = (pid) => fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");

// The file of ours from which a process reads prompts.
function promptsOf(pid) {
    const words = wordsOf(pid), file = words[words.indexOf("--input-file") + 1] || "";
    return path.dirname(file) === folder && file.endsWith(".prompts") && OURS.test(path.basename(file)) ? file : undefined;
}

// What follows the name of a process in its status.
function statusOf(pid) {
    return fs.readFileSync(`/proc/${pid}/stat`, "latin1").split(")").pop().trim().split(" ");
}

function startOf(pid) {
    return statusOf(pid)[19];
}

// The process, its parent and so on.
function lineageOf(pid) {
    const found = [];
    try {
        for (let each = Number(pid); each > 0 && found.length < MAX_LINEAGE; each = Number(statusOf(each)[1])) found.push(each);
    } catch {
        // it has just ended
    }
    return found;
}

// How many bytes a process has written, and when it was typed to last, in ms; null without a terminal.
function workOf(pid) {
    const written = Number(/^wchar: (\d+)/m.exec(fs.readFileSync(`/proc/${pid}/io`, "latin1"))[1]);
    const input = guarded(fs.statSync, `/proc/${pid}/fd/0`);
    return { written, typed: !input.error && input.isCharacterDevice() ? input.atimeMs : null };
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
const OURS = /^\.?emacs-(\d+)-(\d+-\w+)\.[\w.]+$/; // process, and its start with its namespace

// The number of a process says which one it is only in its namespace, and until the next boot; containers may share a home.
const namespace = crypto.createHash("sha1").update([
    guarded(fs.readFileSync, "/proc/sys/kernel/random/boot_id"), guarded(fs.readlinkSync, "/proc/self/ns/pid"),
].join()).digest("hex").slice(0, 8);

function start() {
    const found = guarded(startOf, "self");
    return `${found.error ? 0 : found}-${namespace}`;
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
async function clear() {
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
            if (owner && !await lives(owner[1], owner[2], names)) fs.unlinkSync(file);
        } catch {
            // not ours, or gone
        }
    }
}

async function lives(pid, started, names) {
    const [ticks, its] = started.split("-");
    if (its !== namespace) {
        const socket = names.find((name) => name.startsWith(`emacs-${pid}-${started}.`) && name.endsWith(".sock"));
        return !socket || await answers(path.join(folder, socket));
    }
    try {
        return startOf(pid) === ticks;
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

// Whether a relay has the socket `file`; it goes on with its own pipe as long as nothing is sent.
function answers(file) {
    return new Promise((resolve) => {
        const socket = net.connect(file, () => {
            socket.destroy();
            resolve(true);
        });
        socket.once("error", ({ code }) => resolve(code !== "ECONNREFUSED"));
    });
}

// The program by which CLIs call their command hook, "" without one.
function curl() {
    const files = (process.env.PATH || "").split(":").map((place) => path.join(place, "curl"));
    return files.find((file) => path.isAbsolute(file) && isFile(file)) || "";
}

function attach(input, output) {
    detach();
    channel = { input, output };
    unread = Buffer.alloc(0);
    parts.clear();
    clearTimeout(lingerTimer);
    clearInterval(holdTimer);
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
        curl: curl(),
        layer: process.env.QWEN_CODE_SYSTEM_DEFAULTS_PATH || "/etc/qwen-code/system-defaults.json",
        now: performance.now(),
    }));
    for (const stream of streams.values()) open(stream);
    input.on("data", (data) => {
        if (channel !== null && channel.input === input) receive(data);
    });
}

// Go on without a pipe.
function detach() {
    if (channel === null) return;
    const { input, output } = channel;
    channel = null;
    input.destroy();
    output.destroy();
    for (const { socket } of streams.values()) if (socket.readableEnded) socket.destroy();
    holdTimer = setInterval(() => {
        for (const stream of streams.values()) giveUp(stream) || (stream.isStranger && drop(stream));
    }, KEEP.hold * 1000);
    lingerTimer = setTimeout(quit, KEEP.seconds * 1000);
    // Without a port there is no CLI to keep.
    if (!keeper.listening || !server.listening) quit();
}

// The relay that an earlier pipe has left, if there is one, else this one.
async function begin() {
    await clear();
    const suffix = `.${KEEP.id}.${VERSION}.sock`;
    let names = [];
    try {
        names = fs.readdirSync(folder).filter((name) => OURS.test(name) && name.endsWith(suffix));
    } catch {
        // nothing was laid there
    }
    if (names.length === 0) return keep(suffix);
    const other = net.connect(path.join(folder, names[0])), leave = () => process.exit(0);
    const alone = () => keep(suffix);
    other.once("error", alone);
    other.once("connect", () => {
        other.off("error", alone).on("error", leave).on("close", leave);
        process.stdout.on("error", leave);
        other.write(Buffer.concat([Buffer.from([0, 0, 0, 0, KINDS.ping, 0, 0, 0, 0]), rest]));
        process.stdin.pipe(other);
        other.pipe(process.stdout);
        process.stdin.resume();
    });
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
            if (!["EINVAL", "ENOENT", "ENOTDIR"].includes(error.code)) throw error;
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
    const result = { spellings: names(file), kind: null, repository: null };
    try {
        const found = fs.statSync(file);
        result.kind = found.isFile() ? "file" : found.isDirectory() ? "directory" : "other";
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

function guarded(work, value) {
    try {
        return work(value);
    } catch (error) {
        return { error: error.code || error.message };
    }
}

function text(file) {
    try {
        return { text: readPart(file, 0, PIECE + 1).data.toString("utf8") };
    } catch (error) {
        return error.code === "ENOENT" || error.code === "ENOTDIR" ? {} : { error: error.code || error.message };
    }
}

function readPart(file, offset, length) {
    const descriptor = fs.openSync(file, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
    try {
        const found = fs.fstatSync(descriptor);
        if (!found.isFile()) throw new Error("not a regular file");
        const data = Buffer.alloc(length), size = fs.readSync(descriptor, data, 0, length, offset);
        return { data: data.subarray(0, size), more: size === length, time: found.mtimeMs };
    } finally {
        fs.closeSync(descriptor);
    }
}

// --- Watching: one watch for each directory, as a recursive one loses files that are replaced

const watched = new Map();
let wanted = new Map(); // files that are watched, by their own names and those of what they link to
const changed = new Set();
let gathering = null;

function note(name) {
    for (const file of wanted.get(name) || []) tell(file);
}

function tell(file) {
    changed.add(file);
    gathering = gathering || setTimeout(() => {
        gathering = null;
        send(0, KINDS.event, json({ changed: [...changed].slice(0, 1000) }));
        changed.clear();
    }, GATHER_MS);
}

function watch(files) {
    const before = wanted;
    wanted = new Map();
    for (const file of files) {
        const real = guarded(fs.realpathSync, file);
        for (const name of new Set([file, real.error ? file : real])) {
            wanted.set(name, [...(wanted.get(name) || []), file]);
        }
    }
    for (const name of before.keys()) if (!wanted.has(name)) fs.unwatchFile(name);
    const directories = [...wanted.keys()].map((name) => path.dirname(name));
    watchDirectories(watched, directories, poll, (directory, name) => {
        if (name) return note(path.join(directory, name));
        for (const each of wanted.keys()) if (path.dirname(each) === directory) note(each);
    });
}

// Have `watchers` watch `directories` and no others; call `told` on changes in one, and `lost` where that cannot be.
function watchDirectories(watchers, directories, lost, told, added = () => {}) {
    const wanted = new Set(directories);
    for (const [directory, watcher] of watchers) {
        if (wanted.has(directory)) continue;
        watcher.close();
        watchers.delete(directory);
    }
    for (const directory of wanted) {
        if (watchers.has(directory)) continue;
        try {
            if (watchers.size >= MAX_WATCHED) throw new Error("too many");
            const watcher = fs.watch(directory, { persistent: false }, (_kind, name) => {
                // Of one that has gone, even if it was made anew, it tells nothing more.
                if (name === path.basename(directory) && !fs.existsSync(path.join(directory, name))) {
                    watcher.close();
                    watchers.delete(directory);
                    lost(directory);
                    told(directory, null);
                } else told(directory, name);
            });
            watcher.on("error", () => lost(directory));
            watchers.set(directory, watcher);
            added();
        } catch {
            lost(directory);
        }
    }
}

function poll(directory) {
    for (const name of wanted.keys()) {
        if (path.dirname(name) === directory) {
            fs.watchFile(name, { interval: POLL_MS, persistent: false }, () => note(name));
        }
    }
}

// --- Files of a root: which there are, and what has changed since they were told last.  Git's digests name bytes.

const trees = new Map(); // by root
let lastTold = 0;

// Run git as git.py does: nothing of a repository's runs.
async function git(root, [name, ...rest], input = "", timeout = 60000) {
    const kept = Object.entries(process.env).filter(([key]) => !key.startsWith("GIT_") || key.startsWith("GIT_CONFIG_"));
    const places = (process.env.PATH || "/usr/bin:/bin").split(":").filter((place) => place.startsWith("/"));
    const env = { ...Object.fromEntries(kept), ...KEEP.git.variables, PATH: places.join(":") };
    const filters = KEEP.git.unfiltered.includes(name) ? [] : await withoutFilters(root);
    // The command check-ignore refuses to run with that option.
    const literal = name === "check-ignore" ? [] : ["--literal-pathspecs"];
    const words = ["-C", root, ...KEEP.git.settings, ...literal, ...filters, name, ...(KEEP.git.flags[name] || []), ...rest];
    const options = { encoding: "buffer", timeout, maxBuffer: MAX_FILE, env };
    return new Promise((resolve, reject) => {
        const child = execFile("git", words, options, (error, output, errors) => {
            if (!error) return resolve(output);
            const reason = errors.toString().trim().split("\n")[0] || "git has failed there";
            const message = error.code === "ENOENT" ? "git is not installed there" : reason;
            reject(Object.assign(new Error(message), { status: error.code }));
        });
        child.stdin.on("error", () => {});
        child.stdin.end(input);
    });
}

// The options that turn off each filter in the settings of a repository.
async function withoutFilters(root) {
    const listed = (await git(root, ["config", "--list", "-z", "--name-only"])).toString().split("\0");
    const keys = new Set(listed.filter((key) => /^filter[.].*[.]/s.test(key)).map((key) => key.slice(0, key.lastIndexOf("."))));
    const odd = [...keys].find((key) => key.includes("="));
    // Git takes what is before the first of them for the name.
    if (odd) throw new Error(`a filter in the settings of git has an equals sign in its name: ${JSON.stringify(odd)}`);
    return [...keys].flatMap((key) => KEEP.git.without.flatMap((setting) => ["-c", `${key}.${setting}`]));
}

// Those of `files` that git ignores; null where it does not say.
async function ignored(repository, files) {
    try {
        const output = await git(repository, ["check-ignore", "--stdin", "-z"], files.join("\0"), 5000);
        return new Set(output.toString().split("\0"));
    } catch (error) {
        return error.status === 1 ? new Set() : null;
    }
}

// The repositories that `files` are in, each with those in it.
function repositoriesOf(files) {
    const groups = new Map();
    for (const file of files) {
        const repository = guarded((name) => above(path.dirname(name), [".git"]), file);
        if (typeof repository === "string") groups.set(repository, [...(groups.get(repository) || []), file]);
    }
    return groups;
}

// What git says of those of `files` that are in a repository: that, and whether it ignores them, null for unknown.
async function judge(files) {
    const said = new Map();
    for (const [repository, members] of repositoriesOf(files)) {
        const found = await ignored(repository, members);
        for (const file of members) said.set(file, { repository, ignored: found === null ? null : found.has(file) });
    }
    return said;
}

// The files below `root`, those of submodules, worktrees and other repositories in it too.
async function list(root) {
    if (above(root, [".git"]) === null) return walk(root);
    const output = await git(root, ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    const found = new Set(output.toString().split("\0").filter((name) => name)), inner = new Set(worktrees(root));
    const hasModules = fs.existsSync(path.join(root, ".gitmodules"));
    for (const name of found) {
        if (name.endsWith("/")) inner.add(name);
        else if (hasModules && fs.existsSync(path.join(root, name, ".git"))) inner.add(`${name}/`);
    }
    for (const name of [...inner].slice(0, MAX_REPOSITORIES)) {
        for (const file of await list(path.join(root, name))) found.add(name + file);
    }
    return [...found].filter((name) => !name.endsWith("/"));
}

// Names of what version control systems keep for themselves.
const OWN = new Set([".git", ".hg", ".jj", ".sl", ".svn", ".bzr", "_darcs", ".pijul", ".fslckout", "_FOSSIL_", "CVS"]);

// Whether the file `name` below `root` is in a directory that is a repository's own; `known` has what was found before.
function isOwn(root, name, known = new Map()) {
    if (OWN.has(path.basename(name))) return true;
    const directory = path.dirname(name), place = path.join(root, directory), has = (each) => fs.existsSync(path.join(place, each));
    if (!known.has(directory)) {
        const isRepository = ["HEAD", "objects", "refs"].every(has);
        known.set(directory, isRepository || (directory !== "." && !has(".git") && isOwn(root, directory, known)));
    }
    return known.get(directory);
}

// Those in `root` of the repository that it is the main tree of: git lists no files of one that it ignores.
function worktrees(root) {
    const folder = path.join(root, ".git/worktrees"), names = guarded(fs.readdirSync, folder);
    const trees = (names.error ? [] : names).map((name) =>
        guarded((file) => `${path.dirname(fs.readFileSync(file, "utf8").trim())}/`, path.join(folder, name, "gitdir")));
    const found = trees.filter((tree) => !tree.error && tree.startsWith(`${root}/`) && fs.existsSync(`${tree}.git`));
    return found.map((tree) => tree.slice(root.length + 1));
}

function walk(root) {
    const found = [], waiting = [""];
    while (waiting.length > 0) {
        const directory = waiting.pop();
        const items = guarded((name) => fs.readdirSync(name, { withFileTypes: true }), path.join(root, directory));
        for (const item of items.error ? [] : items) {
            if (!item.isDirectory()) found.push(directory + item.name);
            else if (item.name !== ".git") waiting.push(`${directory}${item.name}/`);
        }
        if (found.length + waiting.length > MAX_FILES) break;
    }
    return found;
}

// The file or link `name`, with its bytes in `data`; `line` if that still says what is there; null where nothing is.
function entry(root, name, line = "", directories = new Map()) {
    const file = path.join(root, name), directory = path.dirname(file);
    let status;
    try {
        status = fs.lstatSync(file);
        if (!directories.has(directory)) directories.set(directory, fs.realpathSync(directory));
    } catch {
        return null;
    }
    if (directories.get(directory) !== directory || !(status.isFile() || status.isSymbolicLink())) return null;
    const { ino, size, mode, mtimeMs, ctimeMs, birthtimeMs, nlink } = status;
    const stamp = `${ino} ${mode} ${size} ${mtimeMs} ${ctimeMs}`;
    if (line.startsWith(`${stamp} `)) return line;
    const result = { name, mode, ino, nlink, born: birthtimeMs || (nlink === 1 ? ctimeMs : 0), changed: ctimeMs };
    result.stamp = Date.now() - ctimeMs < YOUNG_MS ? `${ino} ${mode} - - -` : stamp;
    try {
        if (size > MAX_FILE) throw new Error("larger than 64 MiB");
        result.data = status.isFile() ? whole(file) : fs.readlinkSync(file, "buffer");
        result.digest = digestOf(result.data);
        // It may have been written after the first look at it.
        result.changed = fs.lstatSync(file).ctimeMs;
    } catch (error) {
        result.error = error.code || error.message;
    }
    return result;
}

// What is remembered of a file: one string, as there may be very many.
const lineOf = ({ stamp, digest, kept }) => `${stamp} ${digest || "-"} ${kept ? 1 : 0}`;

function readLine(line) {
    const [ino, mode, , , , digest, kept] = line.split(" ");
    return { ino: Number(ino), mode: Number(mode), digest: digest === "-" ? undefined : digest, kept: kept === "1" };
}

function whole(file) {
    const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = fs.constants;
    const descriptor = fs.openSync(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    try {
        if (!fs.fstatSync(descriptor).isFile()) throw new Error("not a regular file");
        return fs.readFileSync(descriptor);
    } finally {
        fs.closeSync(descriptor);
    }
}

function digestOf(data) {
    return crypto.createHash("sha1").update(`blob ${data.length}\0`).update(data).digest("hex");
}

const words = ({ name, mode, ino, born, changed, digest, error, kept, ignored }) =>
    ({ name, mode, ino, born, changed, digest, error, kept, ignored });

// The bytes in a reply, and their digests and lengths.
class Blobs {
    told = [];
    data = [];
    size = 0;
    add(digest, data) {
        if (this.size > 0 && this.size + data.length + TOLD > SENT) return false;
        this.told.push([digest, data.length]);
        this.data.push(data);
        this.size += data.length + TOLD;
        return true;
    }
}

async function addStored(root, digests, blobs) {
    const output = digests.length ? await git(root, ["cat-file", "--batch"], digests.join("\n") + "\n") : "";
    for (let place = 0; place < output.length;) {
        const end = output.indexOf(10, place), [digest, , size] = output.subarray(place, end).toString().split(" ");
        place = end + 1;
        if (size === undefined) continue;
        blobs.add(digest, output.subarray(place, place + Number(size)));
        place += Number(size) + 1;
    }
}

// Which of `entries` git has the bytes of.
async function markKept(root, entries) {
    if (above(root, [".git"]) === null || entries.length === 0) return;
    const format = "--batch-check=%(objectname) %(objecttype) %(objectsize)";
    const output = await git(root, ["cat-file", format], entries.map(({ digest }) => `${digest}\n`).join(""));
    output.toString().split("\n").forEach((line, index) => {
        const [, kind, size] = line.split(" ");
        if (kind === "blob" && Number(size) <= SENT) entries[index].kept = true;
    });
}

async function lookAt(tree, root, since, skip) {
    const isFull = tree.told !== since, time = Date.now() + 1, real = fs.realpathSync(root);
    const own = new Map(), listed = (await list(real)).filter((name) => !isOwn(real, name, own));
    const before = isFull ? new Map() : tree.files, after = new Map();
    if (listed.length > MAX_FILES) throw new Error(`it has more than ${MAX_FILES} files`);
    const changed = [], read = [], blobs = new Blobs(), directories = new Map(), fresh = [], old = [];
    let odd = 0, room = SENT;
    for (const [index, name] of listed.entries()) {
        if (index % 200 === 199) await new Promise(setImmediate);
        if (name.includes("\ufffd")) {
            ++odd;
            continue;
        }
        const line = before.get(name), found = entry(real, name, line, directories);
        if (found === null) continue;
        after.set(name, found);
        if (found === line) continue;
        read.push(found);
        const { data } = found, known = line && readLine(line);
        delete found.data;
        if (known && known.digest === found.digest && known.mode === found.mode) {
            found.kept = known.kept;
            continue;
        }
        changed.push(found);
        if (isFull && data && data.length < room) {
            room -= data.length;
            fresh.push([found, data]);
        }
        if (known && data && data.length <= SENT && !skip.includes(name)) blobs.add(found.digest, data);
        if (known && known.kept) old.push(known.digest);
    }
    const gone = [];
    for (const [name, line] of before) {
        if (after.has(name)) continue;
        const { ino, digest, kept } = readLine(line);
        gone.push([name, ino]);
        if (kept) old.push(digest);
    }
    if (json(gone).length > LISTED) {
        // A list of all that is there tells it too, and comes in parts.
        tree.told = -1;
        return lookAt(tree, root, since, skip);
    }
    if (isFull) await markKept(real, changed.filter(({ digest }) => digest));
    for (const [{ digest, kept }, data] of fresh) if (!kept) blobs.add(digest, data);
    for (const found of read) after.set(found.name, lineOf(found));
    await addStored(real, old, blobs);
    Object.assign(tree, { told: ++lastTold, files: after, left: changed });
    return {
        told: tree.told, full: isFull, time, odd, gone,
        blobs: blobs.told, data: Buffer.concat(blobs.data), ...next(tree),
    };
}

function next(tree) {
    let size = 0;
    const last = tree.left.findIndex(({ name }) => (size += sizeOf(name)) >= LISTED);
    const files = tree.left.splice(0, last < 0 ? Infinity : last + 1).map(words);
    return { files, more: tree.left.length > 0 };
}

// About how many bytes a reply takes for the file `name`.
function sizeOf(name) {
    return 250 + 3 * name.length;
}

// Watch the directories of the files; return whether each change will be told.
function cover(tree, root, on) {
    const real = on && fs.realpathSync(root), isFirst = tree.watchers.size === 0, news = () => tell(root);
    const directories = on ? [real, ...[...tree.files.keys()].map((name) => path.join(real, path.dirname(name)))] : [];
    let complete = true;
    // What was made in a directory before it was watched is not told.
    watchDirectories(tree.watchers, directories, () => (complete = false), news, isFirst ? undefined : news);
    return complete;
}

// Write `data` to the file, or remove it, if it has the bytes that are expected; what else it has stays, its own mode too
// without a `mode`.
function replace({ root, file: name, expected, remove, data, mode, link, since }) {
    const real = fs.realpathSync(root), file = path.join(real, name), directory = path.dirname(file);
    if (!file.startsWith(`${real}/`) || isOwn(real, name)) throw new Error("not a file of the project");
    let above = directory;
    while (!fs.existsSync(above)) above = path.dirname(above);
    if (fs.realpathSync(above) !== above) throw new Error("its directory leads out of the project");
    const found = entry(real, name);
    if (found === null && guarded(fs.lstatSync, file).error !== "ENOENT") throw new Error("no regular file now");
    if ((found ? found.digest : null) !== expected) throw new Error("it has just changed there; try again in a moment");
    if (remove) {
        fs.unlinkSync(file);
        removeMade(real, directory, since);
        return {};
    }
    mode ??= found ? found.mode & 0o777 : 0o666 & ~process.umask();
    fs.mkdirSync(directory, { recursive: true });
    const isFile = found !== null && !link && (found.mode & fs.constants.S_IFMT) === fs.constants.S_IFREG;
    if (isFile && guarded(() => fs.accessSync(file, fs.constants.W_OK))) throw new Error("it is read-only there");
    let temporary = path.join(directory, `.qwen-companion-${crypto.randomBytes(6).toString("hex")}`);
    try {
        if (link) {
            fs.symlinkSync(data, temporary);
            fs.renameSync(temporary, file);
            return {};
        }
        fs.writeFileSync(temporary, "", { mode: 0o600, flag: "wx" });
        const all = mode | (isFile ? found.mode & 0o7000 : 0);
        if (!isFile || copied(file, temporary)) {
            fs.writeFileSync(temporary, data);
            fs.chmodSync(temporary, all);
            fs.renameSync(temporary, file);
            return {};
        }
        try {
            fs.writeFileSync(file, data);
        } catch (error) {
            try {
                fs.copyFileSync(temporary, file);
            } catch {
                const kept = temporary;
                temporary = null;
                throw new Error(`it is cut off; its text is in ${kept}`);
            }
            throw error;
        }
        if ((fs.statSync(file).mode & 0o7777) !== all) fs.chmodSync(file, all);
        return {};
    } finally {
        if (temporary) fs.rmSync(temporary, { force: true });
    }
}

// Copy the file, with its owner and attributes, over `temporary`; return whether that can take its place.
function copied(file, temporary) {
    try {
        // Node copies no attributes.
        execFileSync("cp", ["-a", "--", file, temporary], { stdio: ["ignore", "ignore", "pipe"] });
    } catch (error) {
        throw new Error(String(error.stderr || error.message).trim().split(": ").pop());
    }
    const [one, other] = [file, temporary].map((name) => fs.statSync(name));
    if (one.mode !== other.mode) throw new Error("only its owner can keep its set-user-ID and set-group-ID bits");
    return one.nlink === 1 && one.uid === other.uid && one.gid === other.gid;
}

// Remove directories that are empty and were made after `since`, the beginning of the turn.
function removeMade(root, directory, since) {
    for (let place = directory; place !== root && since; place = path.dirname(place)) {
        try {
            if (!(fs.statSync(place).birthtimeMs > since)) return;
            fs.rmdirSync(place);
        } catch {
            return;
        }
    }
}

// --- What the doctor asks

// PATH as a terminal gets it, with that of the login shell, by the command `addPath`.
function pathOf(addPath) {
    return new Promise((resolve) => {
        execFile("sh", ["-c", `${addPath}; printf %s "$PATH"`], { timeout: 10000 }, (_error, output) => resolve(output));
    });
}

// The status of the answer that a CLI gets, or why there is none.
function carried() {
    return new Promise((resolve) => {
        const options = { host: "127.0.0.1", port: server.address().port, path: "/mcp", agent: false, timeout: 5000 };
        const request = http.get({ ...options, headers: { Authorization: `Bearer ${tokens[0]}` } }, (answer) => {
            answer.destroy();
            resolve(String(answer.statusCode));
        });
        request.on("timeout", () => request.destroy(new Error("no answer")));
        request.on("error", (error) => resolve(error.message));
    });
}

// The first of `files` that others can read or that is not ours.
function exposed(files) {
    return files.find((name) => {
        const { mode, uid } = fs.lstatSync(name);
        return mode & 0o077 || uid !== process.getuid();
    });
}

// --- Requests

const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: false }, accept);

// The files of a repository in which git has begun what the next commit ends.
const BEGUN = { MERGE_HEAD: "merge", CHERRY_PICK_HEAD: "cherry-pick", REVERT_HEAD: "revert" };

const REQUESTS = {
    // Listen on the port that is preferred, else on any, for CLIs that have one of `tokens`.
    serve: ({ port, tokens: known }) => new Promise((resolve, reject) => {
        const told = () => resolve({ port: server.address().port });
        tokens = known;
        if (server.listening) return told();
        server.once("error", () => {
            server.once("error", reject);
            server.listen({ host: "127.0.0.1", port: 0 }, told);
        });
        server.listen({ host: "127.0.0.1", port }, told);
    }),
    lay,
    look: ({ paths }) => ({ files: paths.map((file) => guarded(look, file)) }),
    texts: ({ paths }) => ({ texts: paths.map(text) }),
    // What lies at `paths` with the word of git on it, and the texts of ignore files.
    async check({ paths, texts = [] }) {
        const files = paths.map((file) => guarded(look, file));
        const real = ({ spellings }) => spellings && spellings[spellings.length - 1];
        const said = await judge(files.map(real).filter((name) => name));
        return { files: files.map((file) => ({ ...file, ...said.get(real(file)) })), texts: texts.map(text) };
    },
    projects: ({ paths }) => ({
        roots: paths.map((directory) => guarded((name) => {
            const root = above(name, [".git", ".hg", ".svn", ".bzr", "_darcs"]) || name;
            return { root, real: fs.realpathSync(root) };
        }, directory)),
    }),
    // Those that git does not ignore, relative to the root, as many as there is room for.
    async names({ root }) {
        const found = [];
        let size = 0;
        for (const name of await list(fs.realpathSync(root))) {
            if ((size += sizeOf(name)) > LISTED) break;
            found.push(name);
        }
        return { names: found };
    },
    // With the time that TRAMP knows of a link.
    read: ({ path: file, offset }) => ({ ...readPart(file, offset, MAX_READ), time: fs.lstatSync(file).mtimeMs }),
    watch: ({ paths }) => (watch(paths), {}),
    // The files of a root that have changed since the reply `since`, all of them where that was not the last one; with
    // the bytes of those that were told before, but those to `skip`, and with the texts of `files`.
    async tree({ root, since, skip, files, watch: on }) {
        if (!trees.has(root) && trees.size >= MAX_TREES) throw new Error("too many projects there");
        const tree = trees.get(root) || { told: -1, files: new Map(), watchers: new Map(), left: [] };
        trees.set(root, tree);
        const texts = files.map(text), result = await lookAt(tree, root, since, skip);
        return { ...result, texts, complete: cover(tree, root, on) };
    },
    rest: ({ root }) => next(trees.get(root)),
    // Put a patch into the index of git, unless there are `others` and it may not come onto them.
    async stage({ root, data, onto }) {
        const apply = (...options) => git(root, ["apply", "--cached", "--whitespace=nowarn", ...options, "-"], data);
        const count = async () => (await git(root, ["diff", "--cached", "--name-only", "-z"])).filter((c) => c === 0).length;
        const directory = path.resolve(root, (await git(root, ["rev-parse", "--git-dir"])).toString().trim());
        for (const [mark, what] of Object.entries(BEGUN)) {
            if (!fs.existsSync(path.join(directory, mark))) continue;
            throw new Error(`a ${what} is in progress, which a commit would end; commit or abort it first`);
        }
        const others = await count();
        if (others > 0 && !onto) return { others };
        try {
            await apply();
        } catch (error) {
            const isThere = await apply("--check", "--reverse").then(() => true, () => false);
            if (!isThere) throw new Error(`it does not stand on what is committed there (${error.message}); W writes a patch`);
            // A commit of it was begun and failed, or was given up.
            if (others === 0) throw new Error("it is in the last commit already");
        }
        return { staged: await count() };
    },
    work: ({ pid }) => workOf(pid),
    // Have the CLI read a line.  One that is not whole would spoil the next one.
    prompt({ pid, text }) {
        const file = promptsOf(pid);
        if (file === undefined) throw new Error("the CLI reads no prompts");
        const size = isFile(file) ? fs.statSync(file).size : 0;
        laid.add(file);
        try {
            fs.appendFileSync(file, `${text}\n`, { mode: 0o600 });
        } catch (error) {
            fs.truncateSync(file, size);
            throw error;
        }
        return {};
    },
    // Files as they are now with their bytes, and bytes that git has, as many as there is room for.
    async fetch({ root, names: wantedNames, digests }) {
        const real = fs.realpathSync(root), blobs = new Blobs(), found = [];
        let done = 0, size = 0;
        for (const name of wantedNames) {
            if ((size += sizeOf(name)) > LISTED) break;
            const item = entry(real, name);
            if (item && item.data && item.data.length <= SENT && !blobs.add(item.digest, item.data)) break;
            if (item) found.push({ ...words(item), size: item.data ? item.data.length : 0 });
            ++done;
        }
        const known = (trees.get(root) || { files: new Map() }).files;
        const unknown = found.filter(({ name }) => !known.has(name)).map(({ name }) => path.join(real, name));
        const said = await judge(unknown);
        for (const item of found) {
            const word = said.get(path.join(real, item.name));
            item.ignored = word !== undefined && word.ignored !== false;
        }
        await addStored(real, digests, blobs);
        return { files: found, done, blobs: blobs.told, data: Buffer.concat(blobs.data) };
    },
    async examine({ program, addPath }) {
        const search = await pathOf(addPath), status = await carried();
        const files = search.split(":").filter(path.isAbsolute).map((place) => path.join(place, program));
        const found = files.find((file) => !guarded(() => fs.accessSync(file, fs.constants.X_OK)));
        return {
            shell: process.env.SHELL || "", path: search, node: process.version, program: found || "", status,
            version: (found && packageOf(fs.realpathSync(found)).version) || "",
            writable: !guarded(() => fs.accessSync(home, fs.constants.W_OK)),
            exposed: exposed([folder, ...laid]) || "", time: Date.now(),
        };
    },
    replace,
    quit,
};

// Emacs gives a request up that was on its way for too long: one that comes after the time at its end is not begun.
async function answer(id, payload) {
    parts.delete(id);
    let result, data = Buffer.alloc(0);
    try {
        if (performance.now() > payload.readDoubleBE(payload.length - 8)) throw new Error("late");
        const end = 4 + payload.readUInt32BE(0), { name, ...values } = JSON.parse(payload.subarray(4, end));
        ({ data = data, ...result } = await REQUESTS[name]({ ...values, data: payload.subarray(end, -8) }));
    } catch (error) {
        result = { error: error.code || error.message };
    }
    const head = json({ ...result, now: performance.now() });
    const length = Buffer.alloc(4);
    length.writeUInt32BE(head.length, 0);
    send(id, KINDS.reply, Buffer.concat([length, head, data]));
}

// --- Life

let lingerTimer = null, holdTimer = null;
const quietTimer = setInterval(detach, QUIET_MS);
const keeper = net.createServer((socket) => socket.on("error", () => {}).once("data", (data) => {
    attach(socket, socket);
    receive(data);
}));
process.on("SIGHUP", detach);
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, quit);
process.on("uncaughtException", quit);
begin();
