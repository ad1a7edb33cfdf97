"""Windows, as far as it can be played on Linux: put first on PYTHONPATH as `sitecustomize.py`.

What only POSIX has is gone, folders cannot be opened, files that are open can be neither replaced
nor removed, a file is synced only through a descriptor that may write, and text without an
encoding is an error in our own modules.
"""

import fcntl as _fcntl
import importlib.abc
import os
import signal
import sys
import warnings

GONE = {
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid getpgid getsid setsid killpg "
    "chown fchmod fchown lchown chroot sync fdatasync posix_fadvise posix_fallocate "
    "sched_getaffinity sched_setaffinity getloadavg nice mkfifo "
    "O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_SYNC O_DSYNC O_NONBLOCK",
    signal: "SIGALRM SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE alarm setitimer getitimer "
    "ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF pause pthread_kill pthread_sigmask sigwait "
    "SIG_BLOCK SIG_UNBLOCK SIG_SETMASK",
}
MODULES = {"fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog", "posix_ipc"}


class _NoSuchModule(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} on this system", name=name)
        return


def _in_use(path, dir_fd=None):
    """Whether this process has the file open; Windows then lets nobody move or remove it."""
    if isinstance(path, int):
        return False
    folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
    full = os.path.join(os.path.realpath(os.path.dirname(os.path.join(folder, path))), os.path.basename(path))  # fmt: skip
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == full:
                return True
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any(line.rstrip().endswith(" " + full) for line in maps)


def _careful(real):
    def call(path, *rest, **more):
        targets = [path, *rest[:1]] if real in (_replace, _rename) else [path]
        for target in targets:
            if _in_use(os.fspath(target), more.get("dir_fd")):
                raise PermissionError(13, "it is in use by this process", os.fspath(target))
        return real(path, *rest, **more)

    return call


def _open(path, flags, *rest, **more):
    if os.path.isdir(path) and not more:  # shutil's own way of removing a tree is let be
        raise PermissionError(13, "a folder cannot be opened", os.fspath(path))
    return _real_open(path, flags, *rest, **more)


def _fsync(number):
    number = number if isinstance(number, int) else number.fileno()
    if _fcntl.fcntl(number, _fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    return _real_fsync(number)


_replace, _rename, _real_open, _real_fsync = os.replace, os.rename, os.open, os.fsync
os.replace, os.rename = _careful(_replace), _careful(_rename)
os.unlink = os.remove = _careful(os.unlink)
os.open, os.fsync = _open, _fsync
for _module, _names in GONE.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)
for _name in MODULES:
    sys.modules.pop(_name, None)
sys.meta_path.insert(0, _NoSuchModule())
warnings.filterwarnings("error", category=EncodingWarning, module=r"privcal\b")
