"""The files of an Orin Nano 8 GB under JetPack 6.2, and what a doctor finds wrong.

They follow its documents and have not been captured on a board.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hrm_host.doctor import Finding
from hrm_host.machine import Host

NVPMODEL_CONF = """\
# FORMAT:
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=1 NAME=25W >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
CPU_ONLINE CORE_0 1
< PM_CONFIG DEFAULT=1 >
"""
GPU = "sys/class/devfreq/17000000.gpu"
ZONE = "sys/class/thermal/thermal_zone"
ORIN = {
    "etc/nv_tegra_release": (
        "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: x\n"
    ),
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0",
    "var/lib/nvpmodel/status": "pmode:0002 fmode:quiet\n",
    "etc/nvpmodel.conf": NVPMODEL_CONF,
    f"{GPU}/cur_freq": "306000000\n",
    f"{GPU}/max_freq": "1020000000\n",
    "sys/class/hwmon/hwmon2/name": "soctherm_oc\n",
    "sys/class/hwmon/hwmon2/oc1_event_cnt": "0\n",
    "sys/class/hwmon/hwmon2/oc3_event_cnt": "0\n",
    f"{ZONE}0/type": "cpu-thermal\n",
    f"{ZONE}0/temp": "51250\n",
    f"{ZONE}1/type": "gpu-thermal\n",
    f"{ZONE}1/temp": "52500\n",
    "proc/meminfo": """\
MemTotal: 7802764 kB
MemAvailable: 6100000 kB
SwapTotal: 3901376 kB
SwapFree: 3901376 kB
""",
    "proc/swaps": """\
Filename Type Size Used Priority
/dev/zram0 partition 1950688 0 5
/dev/zram1 partition 1950688 0 5
""",
}


def board(root: Path, files: Mapping[str, str] = ORIN, /, **changes: str) -> Host:
    """Write a board's files below `root`; a change replaces the text of a file by its last part."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changes.get(file.name, text))
    return Host(root=root)


def unwell(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings if finding.level != "ok"}
