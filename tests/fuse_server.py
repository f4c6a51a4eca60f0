"""A FUSE filesystem of any subtype, that shows a folder: ``fuse_server.py SUBTYPE SOURCE FOLDER MOUNT_POINT``.

Speaks the kernel's protocol (linux/fuse.h) over /dev/fuse and mounts itself, so that no program has to be installed.
Needs the right to mount. Ends when it is unmounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable

ROOT = 1
WRITE_MAX = 128 << 10
HEAD = struct.Struct("<IIQQIIIHH")
ANSWER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q3I6II")
ENTRY = struct.Struct("<4Q2I")
OPENED = struct.Struct("<QIi")
SET = struct.Struct("<II6Q3IIIIII")
SET_MODE, SET_UID, SET_GID, SET_SIZE = 1, 2, 4, 8


class Server:
    """Answers the kernel's requests, one after another."""

    def __init__(self, device: int, folder: str) -> None:
        self.device = device
        self.paths = {ROOT: folder}
        self.numbers = {folder: ROOT}
        self.next = ROOT + 1
        self.requests: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup,
            3: lambda node, _: self.attributes_of(node),
            4: self.set_attributes,
            9: self.make_folder,
            10: lambda node, body: self.remove(os.unlink, node, body),
            11: lambda node, body: self.remove(os.rmdir, node, body),
            12: lambda node, body: self.rename(node, body, 8),
            13: self.link,
            14: self.open,
            15: self.read,
            16: self.write,
            17: lambda node, _: self.space(node),
            18: self.release,
            20: self.flush,
            25: lambda _, __: b"",
            26: lambda _, __: self.begin(),
            27: lambda _, __: OPENED.pack(0, 0, 0),
            28: self.list,
            29: lambda _, __: b"",
            30: lambda _, __: b"",
            35: self.create,
            45: lambda node, body: self.rename(node, body, 16),
        }

    def serve(self) -> None:
        """Answer until the filesystem is unmounted."""
        while True:
            try:
                request = os.read(self.device, WRITE_MAX + (1 << 16))
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            _, code, unique, node, *_ = HEAD.unpack_from(request)
            # FORGET, INTERRUPT and BATCH_FORGET have no answer.
            if code in (2, 36, 42):
                continue
            answer = self.requests.get(code)
            error, body = errno.ENOSYS, b""
            if answer is not None:
                try:
                    error, body = 0, answer(node, request[HEAD.size :])
                except OSError as failed:
                    error = failed.errno or errno.EIO
            try:
                os.write(self.device, ANSWER.pack(ANSWER.size + len(body), -error, unique) + body)
            except OSError as failed:
                # ENOENT: who asked was interrupted.
                if failed.errno not in (errno.ENOENT, errno.ENODEV):
                    raise

    def begin(self) -> bytes:
        return struct.pack("<4I2HII2HII6I", 7, 31, 1 << 17, 0, 16, 12, WRITE_MAX, 1, 32, 0, 0, 0, *(0,) * 6)

    def inside(self, node: int, body: bytes) -> str:
        return os.path.join(self.paths[node], body.split(b"\0", 1)[0].decode())

    def attributes(self, path: str) -> bytes:
        s = os.lstat(path)
        times = [divmod(time, 10**9) for time in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
        return ATTRIBUTES.pack(
            s.st_ino,
            s.st_size,
            s.st_blocks,
            *(seconds for seconds, _ in times),
            *(rest for _, rest in times),
            s.st_mode,
            s.st_nlink,
            s.st_uid,
            s.st_gid,
            0,
            4096,
            0,
        )

    def entry(self, path: str) -> bytes:
        attributes = self.attributes(path)
        if path not in self.numbers:
            self.numbers[path], self.paths[self.next] = self.next, path
            self.next += 1
        return ENTRY.pack(self.numbers[path], 0, 0, 0, 0, 0) + attributes

    def forget(self, path: str) -> None:
        self.numbers.pop(path, None)

    def lookup(self, node: int, body: bytes) -> bytes:
        return self.entry(self.inside(node, body))

    def attributes_of(self, node: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self.attributes(self.paths[node])

    def set_attributes(self, node: int, body: bytes) -> bytes:
        fields = SET.unpack_from(body)
        valid, size, mode, uid, gid = fields[0], fields[3], fields[11], fields[13], fields[14]
        path = self.paths[node]
        if valid & SET_MODE:
            os.chmod(path, mode & 0o7777)
        if valid & (SET_UID | SET_GID):
            os.chown(path, uid if valid & SET_UID else -1, gid if valid & SET_GID else -1)
        if valid & SET_SIZE:
            os.truncate(path, size)
        return self.attributes_of(node)

    def make_folder(self, node: int, body: bytes) -> bytes:
        path = self.inside(node, body[8:])
        os.mkdir(path, 0o755)
        return self.entry(path)

    def remove(self, how: Callable[[str], None], node: int, body: bytes) -> bytes:
        path = self.inside(node, body)
        how(path)
        self.forget(path)
        return b""

    def rename(self, node: int, body: bytes, head: int) -> bytes:
        (into,) = struct.unpack_from("<Q", body)
        old, new = body[head:].split(b"\0")[:2]
        source, target = self.inside(node, old), self.inside(into, new)
        os.rename(source, target)
        number = self.numbers.pop(source, None)
        if number is not None:
            self.numbers[target], self.paths[number] = number, target
        return b""

    def link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        path = self.inside(node, body[8:])
        os.link(self.paths[old], path)
        return self.entry(path)

    def open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        # The kernel reads pages that are written in part, so write-only is not enough.
        access = os.O_RDWR if flags & os.O_ACCMODE else os.O_RDONLY
        return OPENED.pack(os.open(self.paths[node], access), 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        path = self.inside(node, body[16:])
        opened = os.open(path, os.O_RDWR | os.O_CREAT | flags & os.O_EXCL, mode)
        return self.entry(path) + OPENED.pack(opened, 0, 0)

    def read(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def write(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def release(self, _: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def flush(self, _: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def space(self, node: int) -> bytes:
        s = os.statvfs(self.paths[node])
        counts = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree)
        return struct.pack("<5Q4I6I", *counts, s.f_bsize, 255, s.f_frsize, 0, *(0,) * 6)

    def list(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        listed = b""
        names = [".", "..", *sorted(os.listdir(self.paths[node]))]
        for at, name in enumerate(names[offset:], offset + 1):
            raw = name.encode()
            one = struct.pack("<QQII", 1, at, len(raw), 0) + raw
            one += bytes(-len(one) % 8)
            if len(listed) + len(one) > size:
                break
            listed += one
        return listed


def main() -> None:
    """Mount and serve."""
    subtype, source, folder, mount_point = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    kind = "fuse" if subtype == "-" else f"fuse.{subtype}"
    if libc.mount(source.encode(), mount_point.encode(), kind.encode(), 0, options.encode()) != 0:
        print(f"refused: {os.strerror(ctypes.get_errno())}", flush=True)
        return
    print("mounted", flush=True)
    Server(device, folder).serve()


if __name__ == "__main__":
    main()
