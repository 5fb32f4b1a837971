"""A tree of sysfs: NUMA nodes, GPUs and network adapters of a node."""


def sysfs(root, nodes, gpus=(), nics=(), distances=None):
    """A tree of sysfs: NUMA node -> cores, PCI address -> node, adapter -> node."""
    for row, (node, cores) in enumerate(nodes.items()):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
        far = distances[row] if distances else [10 if n == node else 12 for n in nodes]
        (folder / "distance").write_text(" ".join(map(str, far)) + "\n")
    for bus, node in dict(gpus).items():
        folder = root / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
    for path, node in dict(nics).items():
        device = root / "sys/class" / path / "device"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return root


# docs.nersc.gov: the GPUs of a node of Perlmutter are in the order opposite to its
# NUMA nodes, and hardware threads of 64 cores follow each other.
CROSSED = {
    "nodes": {
        n: f"{16 * n}-{16 * n + 15},{64 + 16 * n}-{79 + 16 * n}" for n in range(4)
    },
    "gpus": {
        f"0000:{bus}:00.0": 3 - n for n, bus in enumerate(("03", "41", "82", "c1"))
    },
}
# apps.fz-juelich.de/jsc/hps/juwels: eight NUMA nodes, four GPUs; distances of NPS-4.
BOOSTER = {
    "nodes": {n: f"{6 * n}-{6 * n + 5}" for n in range(8)},
    "gpus": {
        "0000:03:00.0": 3,
        "0000:44:00.0": 1,
        "0000:84:00.0": 7,
        "0000:c4:00.0": 5,
    },
    "distances": [
        [10 if a == b else 12 if a // 4 == b // 4 else 32 for b in range(8)]
        for a in range(8)
    ],
}
