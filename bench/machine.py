"""What the machine says about processes and about itself: CPU time, memory, disturbance.  Linux only."""

import os
import platform
import resource
import time

TICK = os.sysconf("SC_CLK_TCK")
PROC = "/proc"


def _read(path: str) -> str:
    """A file of /proc, empty when the process has ended meanwhile."""
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        for thread in _threads(one):
            todo += [int(child) for child in _read(f"{PROC}/{one}/task/{thread}/children").split()]
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """On-CPU time of every thread of the process tree (schedstat's first field, ns)."""
    total = 0
    for one in process_tree(pid):
        for thread in _threads(one):
            fields = _read(f"{PROC}/{one}/task/{thread}/schedstat").split()
            total += int(fields[0]) if fields else 0
    return total / 1e9


def private_kib(pid: int) -> int:
    """Private memory of the process tree, KiB: what would come back if it ended."""
    total = 0
    for one in process_tree(pid):
        for line in _read(f"{PROC}/{one}/smaps_rollup").splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1])
    return total


def busy_seconds() -> float:
    """CPU time used by everything since boot, time stolen by other machines on the host included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _read("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def own_seconds() -> float:
    """CPU time of this runner and of the load clients that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_until_quiet(cores: float, seconds: float) -> None:
    """Returns when fewer than `cores` cores are in use, or after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(0.5)
        if (busy_seconds() - before) / 0.5 < cores:
            return


def cpus() -> tuple[set[int], set[int]]:
    """(for load client and upstream, for the proxy): the first and the last CPU we may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("bench: two CPUs are needed: one for the proxy, one for upstream and client")
    return {allowed[0]}, {allowed[-1]}


def raise_open_files(wanted: int = 16384) -> None:
    """1,024 streams are 2,048 sockets in a proxy; many shells allow 1,024 files."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def describe() -> dict[str, str]:
    models = [
        line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cpus": str(os.cpu_count()),
        "memory_gib": str(round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
