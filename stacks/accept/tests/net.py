"""A fabric as ibnetdiscover prints it, which is also what ibsim reads; tests move its cables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

End = tuple[str, int]
# The tests' pools have 400 Gb/s. ibsim 0.10 knows no NDR, and eight lanes of HDR have the same rate.
RATE = "8xHDR"


@dataclass
class Net:
    """Cables between HCAs ("NODE HCA", port 1) and switches, each with its width and speed."""

    hcas: dict[str, int]
    cables: dict[frozenset[End], str] = field(default_factory=dict)

    @classmethod
    def of(cls, rails: Mapping[str, Mapping[str, int]], *, group: int = 32, spines: int = 2) -> Net:
        """A rail-optimised fabric: of each GROUP nodes, a leaf per rail. RAILS: node -> HCA -> port GUID."""
        made = cls({f"{node} {hca}": guid for node, hcas in rails.items() for hca, guid in hcas.items()})
        leaves: list[str] = []
        for number, (node, hcas) in enumerate(rails.items()):
            for hca in hcas:
                leaf = f"leaf-{number // group}-{hca.rpartition('_')[2]}"
                leaves += [leaf] if leaf not in leaves else []
                made.plug((f"{node} {hca}", 1), (leaf, 1 + number % group))
        for up, leaf in enumerate(leaves):
            for spine in range(spines):
                made.plug((leaf, 1 + group + spine), (f"spine-{spine}", 1 + up))
        return made

    def plug(self, one: End, other: End, rate: str = RATE) -> None:
        self.cables[frozenset((one, other))] = rate

    def unplug(self, end: End) -> End:
        """Take the cable of an end out; its other end."""
        [cable] = [each for each in self.cables if end in each]
        del self.cables[cable]
        [other] = cable - {end}
        return other

    def swap(self, one: End, other: End) -> None:
        """Exchange the far ends of two cables."""
        first, second = self.unplug(one), self.unplug(other)
        self.plug(one, second)
        self.plug(other, first)

    def text(self) -> str:
        at: dict[str, dict[int, tuple[End, str]]] = {}
        for cable, rate in self.cables.items():
            one, other = sorted(cable)
            at.setdefault(one[0], {})[one[1]] = (other, rate)
            at.setdefault(other[0], {})[other[1]] = (one, rate)
        switches = sorted(at.keys() - self.hcas.keys())
        ids = {name: f"S-{0x200000 + 16 * number:016x}" for number, name in enumerate(switches)}
        # ibsim makes the GUID of port 1 from that of the HCA plus 1.
        ids |= {name: f"H-{guid - 1:016x}" for name, guid in self.hcas.items()}
        lines = ["#", "# Topology file: generated on Thu Nov 26 20:32:18 2026", "#"]
        for name in (*switches, *self.hcas):
            guid = int(ids[name][2:], 16)
            is_switch = name not in self.hcas
            lines += ["", "vendid=0x0", "devid=0x0", f"sysimgguid=0x{guid:x}"]
            if is_switch:
                lines.append(f"switchguid=0x{guid:x}({guid:x})")
                lines.append(f'Switch\t64 "{ids[name]}"\t\t# "{name}" enhanced port 0 lid 1 lmc 0')
            else:
                lines += [f"caguid=0x{guid:x}", f'Ca\t1 "{ids[name]}"\t\t# "{name}"']
            for port, ((peer, peer_port), rate) in sorted(at.get(name, {}).items()):
                far = f"({self.hcas[peer]:x})" if peer in self.hcas else ""
                about = f'# "{peer}" lid 1 {rate}' if is_switch else f'# lid 1 lmc 0 "{peer}" lid 1 {rate}'
                near = "" if is_switch else f"({guid + 1:x})"
                lines.append(f'[{port}]{near}\t"{ids[peer]}"[{peer_port}]{far} \t\t{about}')
        return "\n".join([*lines, ""])
