"""A file system in memory, over /dev/fuse, that lacks what network and bucket mounts lack: a program for tests.

    python fuse_server.py MOUNTPOINT [WHAT ...]      until it is unmounted; needs root

``WHAT`` names an operation that fails, with an errno if it is not ENOSYS: ``link``, ``rename``, ``rename2``,
``statfs``, ``truncate``, ``fallocate``, ``flock=524``, ``fsyncdir=EIO``. Or it is one of ``flagless`` (renames ignore
their flags), ``sequential`` (writes only from front to back), ``nospace`` (statfs tells of no blocks), ``renumbered``
(each lookup gives a new inode), ``stale`` (a file that was removed has no status any more), ``indirect`` (the kernel
caches nothing).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
import struct
import sys
import time
from typing import Any

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKDIR, UNLINK, RMDIR = 1, 2, 3, 4, 5, 6, 9, 10, 11
RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT = 12, 13, 14, 15, 16, 17, 18, 20, 25, 26
OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, SETLK, SETLKW, CREATE, INTERRUPT = 27, 28, 29, 30, 32, 33, 35, 36
BATCH_FORGET, FALLOCATE, RENAME2 = 42, 43, 45
NAMES = {LINK: "link", RENAME: "rename", RENAME2: "rename2", STATFS: "statfs", FALLOCATE: "fallocate"}
NAMES |= {SETLK: "flock", SETLKW: "flock", FSYNCDIR: "fsyncdir"}
FLOCK_LOCKS, BIG_WRITES = 1 << 10, 1 << 5
DIRECT_IO = 1


class Node:
    def __init__(self, mode: int, uid: int, gid: int) -> None:
        self.mode, self.uid, self.gid, self.nlink = mode, uid, gid, 1
        self.data, self.children = bytearray(), {}
        self.mtime = self.ctime = time.time_ns()
        self.end = 0  # where the next write goes, if they go from front to back
        self.number = next(numbers)
        nodes[self.number] = self


def failure(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def attributes(node: Node, number: int) -> bytes:
    if "stale" in faults and not node.nlink:
        raise failure(errno.ESTALE)
    size, times = len(node.data), (node.mtime, node.mtime, node.ctime)
    seconds, rest = [t // 10**9 for t in times], [t % 10**9 for t in times]
    facts = (node.mode, node.nlink, node.uid, node.gid, 0, 4096, 0)
    return struct.pack("<6Q10I", number, size, -(-size // 512), *seconds, *rest, *facts)


def entry(node: Node) -> bytes:
    number = node.number
    if "renumbered" in faults:
        number = next(numbers)
        nodes[number] = node
    return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + attributes(node, number)


def add(folder: Node, name: bytes, node: Node) -> Node:
    if name in folder.children:
        raise failure(errno.EEXIST)
    folder.children[name] = node
    folder.mtime = folder.ctime = time.time_ns()
    return node


def remove(folder: Node, name: bytes) -> None:
    node = folder.children.get(name)
    if node is None:
        raise failure(errno.ENOENT)
    if node.children:
        raise failure(errno.ENOTEMPTY)
    del folder.children[name]
    node.nlink -= 1
    node.ctime = folder.mtime = folder.ctime = time.time_ns()


def rename(folder: Node, name: bytes, target: Node, new: bytes, flags: int) -> bytes:
    flags = 0 if "flagless" in faults else flags
    there = target.children.get(new)
    if flags & 1 and there:
        raise failure(errno.EEXIST)
    node = folder.children[name]
    if flags & 2:
        if there is None:
            raise failure(errno.ENOENT)
        folder.children[name], target.children[new] = there, node
        there.ctime = time.time_ns()
    else:
        if there is not None and there is not node:
            remove(target, new)
        target.children[new] = folder.children.pop(name)
    node.ctime = target.mtime = time.time_ns()
    return b""


def set_attributes(node: Node, number: int, body: bytes) -> bytes:
    valid, size, mode, uid, gid = struct.unpack_from("<I12xQ44xI4xII", body)
    if valid & 8:
        if "truncate" in faults:
            raise failure(faults["truncate"])
        node.data[size:] = bytes(max(0, size - len(node.data)))
    if valid & 1:
        node.mode = mode
    node.uid, node.gid = uid if valid & 2 else node.uid, gid if valid & 4 else node.gid
    node.ctime = time.time_ns()
    return struct.pack("<QII", 0, 0, 0) + attributes(node, number)


def write(node: Node, body: bytes) -> bytes:
    offset, size = struct.unpack_from("<8xQI", body)
    if "sequential" in faults and offset != node.end:
        raise failure(errno.EINVAL)
    node.data[len(node.data) :] = bytes(max(0, offset - len(node.data)))
    node.data[offset : offset + size] = body[40 : 40 + size]
    node.end = offset + size
    node.mtime = node.ctime = time.time_ns()
    return struct.pack("<II", size, 0)


def listing(node: Node, offset: int, room: int) -> bytes:
    out = b""
    for at, name in enumerate([b".", b"..", *sorted(node.children)]):
        record = struct.pack("<QQII", 1, at + 1, len(name), 0) + name
        record += bytes(-len(record) % 8)
        if at >= offset and len(out) + len(record) <= room:
            out += record
    return out


def answer(op: int, number: int, uid: int, gid: int, body: bytes) -> bytes:
    node = nodes[number]
    names = body.split(b"\0")
    if NAMES.get(op) in faults:
        raise failure(faults[NAMES[op]])
    if op == INIT:
        flags = BIG_WRITES | (FLOCK_LOCKS if "flock" in faults else 0)
        return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, flags, 12, 9, 1 << 17, 1, 32, 0, *[0] * 8)
    if op == LOOKUP:
        if names[0] not in node.children:
            raise failure(errno.ENOENT)
        return entry(node.children[names[0]])
    if op == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node, number)
    if op == SETATTR:
        return set_attributes(node, number, body)
    if op == MKDIR:
        mode, mask = struct.unpack_from("<II", body)
        return entry(add(node, body[8:].split(b"\0")[0], Node(stat.S_IFDIR | mode & ~mask, uid, gid)))
    if op == SYMLINK:
        link = add(node, names[0], Node(stat.S_IFLNK | 0o777, uid, gid))
        link.data[:] = names[1]
        return entry(link)
    if op == READLINK:
        return bytes(node.data)
    if op in (UNLINK, RMDIR):
        remove(node, names[0])
        return b""
    if op in (RENAME, RENAME2):
        target, flags = struct.unpack_from("<QI", body) if op == RENAME2 else (*struct.unpack_from("<Q", body), 0)
        old, new = body[16 if op == RENAME2 else 8 :].split(b"\0")[:2]
        return rename(node, old, nodes[target], new, flags)
    if op == LINK:
        linked = nodes[struct.unpack_from("<Q", body)[0]]
        add(node, body[8:].split(b"\0")[0], linked)
        linked.nlink += 1
        return entry(linked)
    if op == CREATE:
        _, mode, mask, _ = struct.unpack_from("<4I", body)
        made = add(node, body[16:].split(b"\0")[0], Node(stat.S_IFREG | mode & ~mask & 0o7777, uid, gid))
        return entry(made) + struct.pack("<QII", 0, DIRECT_IO if "indirect" in faults else 0, 0)
    if op in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, 0, 0)
    if op == READ:
        offset, size = struct.unpack_from("<8xQI", body)
        return bytes(node.data[offset : offset + size])
    if op == READDIR:
        return listing(node, *struct.unpack_from("<8xQI", body))
    if op == WRITE:
        return write(node, body)
    if op == FALLOCATE:
        offset, size = struct.unpack_from("<8xQQ", body)
        node.data[len(node.data) :] = bytes(max(0, offset + size - len(node.data)))
        return b""
    if op == STATFS:
        blocks = 0 if "nospace" in faults else 1 << 16
        return struct.pack("<5Q4I24x", blocks, blocks, blocks, blocks, blocks, 4096, 255, 4096, 0)
    if op in (RELEASE, RELEASEDIR, FSYNC, FSYNCDIR, FLUSH):
        return b""
    raise failure(errno.ENOSYS)


def serve(device: int) -> None:
    while True:
        try:
            request = os.read(device, 1 << 18)
        except InterruptedError:
            continue
        except OSError:  # unmounted
            return
        op, unique, number, uid, gid = struct.unpack_from("<4xIQQII", request)
        if op in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        try:
            code, reply = 0, answer(op, number, uid, gid, request[40:])
        except OSError as error:
            code, reply = -(error.errno or errno.EIO), b""
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(reply), code, unique) + reply)
        except FileNotFoundError:  # nobody waits for the answer any more
            continue


def fault(word: str) -> tuple[str, int]:
    name, _, code = word.partition("=")
    return name, getattr(errno, code, 0) or int(code or errno.ENOSYS)


numbers = itertools.count(1)
nodes: dict[int, Any] = {0: None}
faults = dict(map(fault, sys.argv[2:]))

if __name__ == "__main__":
    Node(stat.S_IFDIR | 0o1777, 0, 0)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"ltx2c-test", os.fsencode(sys.argv[1]), b"fuse", 0, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    serve(device)
