# SPDX-License-Identifier: Apache-2.0
"""A meter at the end of a serial line: its frames or lines -> readings on this machine's clock.

The meter speaks by itself; `read` returns what has come meanwhile. docs/PROTOCOL.md, section 9, has the format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from paceline.talk import printable
from paceline_agent.cadence import Rhythm
from paceline_agent.meters import MeterError, MeterSettings, Reading
from paceline_agent.meters import serial_frames as frames
from paceline_agent.meters.device_clock import LIMIT
from paceline_agent.meters.serial_lines import UNITS, Line, LineParser
from paceline_agent.meters.serial_port import SerialPort
from paceline_agent.meters.serial_stream import WRAP, Health, Kind, Sample, Stream

PATIENCE_US = 3_000_000  # a meter that has not said anything sensible for so long is in trouble
NOTES = 16  # TEXTs that are kept until somebody looks; of a meter that goes on talking ...
NOTE_US = 1_000_000  # ... one a second
SILENT_PERIODS = 10  # ... a slow one for so many of its periods


class SerialMeter:
    """`source` names the port; what the meter says of itself is in `ident`."""

    def __init__(self, settings: MeterSettings, now_us: int) -> None:
        self._settings = settings
        self._port = SerialPort(settings.port, settings.baud)
        self.source = f"serial/{settings.port.rstrip(':/').rpartition('/')[2]}"
        self._heard_us = max(now_us, self._port.opened_us)  # the last sensible thing, or the beginning
        self._bytes = 0  # since then
        self._useless = (0, 0)  # samples without a fresh value, and counts that went back, up to the last read
        delay_us = round(settings.delay_ms * 1000)
        self._speech: Frames | Lines = (
            Frames(settings, delay_us) if settings.format == "frames" else Lines(settings, delay_us)
        )

    @property
    def ident(self) -> frames.Ident | None:
        """Return what the meter said of itself; None before, and from a meter that prints lines."""
        return self._speech.ident

    @property
    def steps(self) -> int:
        """Return how many steps of its converter the channel shows that shows most; 0 where that is not known."""
        return self._speech.steps

    @property
    def counts(self) -> bool:
        """Return whether it counts joules: a power that it gives is its count's step."""
        return self._speech.stream is not None and self._speech.stream.kind == "energy"

    @property
    def health(self) -> Health:
        """Return what went wrong so far."""
        return self._speech.stream.health if self._speech.stream is not None else Health()

    @property
    def damaged(self) -> int:
        """Return how many frames or lines came damaged."""
        return self._speech.parser.damaged

    @property
    def rhythm(self) -> Rhythm:
        """The meter's own period, as it says or as it is seen."""
        if self.ident is not None:
            return Rhythm(self.ident.period_us)
        return Rhythm(self._speech.stream.period_us if self._speech.stream is not None else 0)

    def read(self, now_us: int) -> Sequence[Reading]:
        """Return the readings that have come. Raises MeterError when the meter is in trouble and there are none."""
        for arrival_us, data in self._port.take():
            if not data:
                self._speech.parser.cut()
                continue
            self._bytes += len(data)
            if self._speech.hear(arrival_us, data):
                self._heard_us, self._bytes = arrival_us, 0
        readings = self._speech.stream.take() if self._speech.stream is not None else []
        before, self._useless = self._useless, (self.health.stale, self.health.resets)
        if not readings:
            self._complain(now_us, *(now - then for now, then in zip(self._useless, before, strict=True)))
        return readings

    def said(self) -> list[str]:
        """Return what the meter has said to a person since the last call."""
        notes = self._speech.notes
        return [notes.popleft() for _ in range(len(notes))]

    def activity(self, t_us: int, active: bool) -> None:
        """A sensor has no use for it."""

    def close(self) -> None:
        """Give the port back."""
        self._port.close()

    def _period_us(self) -> int:
        set_ms = self._settings.period_ms
        return self.rhythm.update_us if set_ms is None else set_ms * 1000

    def _complain(self, now_us: int, stale: int, resets: int) -> None:
        if self._port.trouble:
            raise MeterError(self._port.trouble)
        if self._speech.trouble:
            raise MeterError(f"{self._settings.port}: {self._speech.trouble}")
        if stale:
            raise MeterError(f"{self._settings.port}: the meter has no fresh value, or one that cannot be")
        if resets:
            raise MeterError(f"{self._settings.port}: the meter began anew, or its count went back")
        clock = self._speech.stream.clock if self._speech.stream is not None else None
        if clock is not None and clock.is_absurd:
            raise MeterError(
                f"{self._settings.port}: the meter's clock and this machine's differ by more than "
                f"{LIMIT * 100:g} %; is the unit of its time right?"
            )
        since_us = max(self._heard_us, self._port.opened_us)
        if now_us - since_us < max(PATIENCE_US, SILENT_PERIODS * self._period_us()):
            return
        if self._bytes == 0:
            raise MeterError(
                f"{self._settings.port} is open and says nothing; is the meter powered, and is it the port?"
            )
        raise MeterError(
            f"{self._settings.port} says nothing that is {self._speech.expects} ({self._bytes} bytes so far): is "
            f"meter.baud = {self._settings.baud} the meter's, and meter.format = {self._settings.format!r}?"
        )


class Frames:
    """Our own format."""

    expects = "a reading after an IDENT"

    def __init__(self, settings: MeterSettings, delay_us: int) -> None:
        self._settings, self._delay_us = settings, delay_us
        self.parser = frames.FrameParser()
        self.stream: Stream | None = None
        self.ident: frames.Ident | None = None
        self.trouble = ""
        self.notes: deque[str] = deque(maxlen=NOTES)  # TEXT for a person
        self._notes_left, self._note_us = NOTES, 0
        self.steps = 0
        self._energies: tuple[int, ...] = ()  # the counters of the last reading, and their sum without wraps
        self._energy_nj = 0

    def hear(self, arrival_us: int, data: bytes) -> bool:
        """Take bytes; return whether a reading was among them."""
        heard = False
        for frame in self.parser.feed(data):
            if isinstance(frame, frames.Ident):
                self._meet(frame)
            elif isinstance(frame, frames.ReadingFrame):
                heard |= self._reading(frame, arrival_us)
            elif isinstance(frame, frames.Text):
                self._note(frame.text, arrival_us)
            elif isinstance(frame, frames.Fault):
                self.trouble = f"the meter reports fault {frame.code}: {printable(frame.text) or 'no text'}"
            elif isinstance(frame, frames.Unsupported):
                self.trouble = (
                    f"the meter speaks version {frame.version} of the format, this agent version {frames.VERSION}; "
                    "update the older one"
                )
        return heard

    def _note(self, text: str, arrival_us: int) -> None:
        earned = (arrival_us - self._note_us) // NOTE_US
        if earned > 0:
            self._notes_left, self._note_us = min(NOTES, self._notes_left + earned), arrival_us
        clean = printable(text)
        if clean and self._notes_left > 0:
            self._notes_left -= 1
            self.notes.append(clean)

    def _meet(self, ident: frames.Ident) -> None:
        if ident == self.ident:
            return
        try:
            self._chosen, kind = self._layout(ident)
        except MeterError as error:
            self.ident, self.trouble = None, str(error)
            return
        if self.stream is None:
            self.stream = Stream(kind, self._delay_us)
            self._kind = kind
        elif kind != self._kind:
            self.ident, self.trouble = None, "the meter's readings are of another kind now; start the agent anew"
            return
        else:
            self.stream.reset()
        self.ident, self.trouble, self._energies = ident, "", ()

    def _layout(self, ident: frames.Ident) -> tuple[list[int], Kind]:
        """Return the places of the channels that are summed, and the kind of their readings. Raises MeterError."""
        names = [channel.name for channel in ident.channels]
        wanted = self._settings.channels or tuple(c.name for c in ident.channels if c.flags & frames.COUNTED)
        missing = [name for name in wanted if name not in names]
        if missing or not wanted:
            raise MeterError(f"meter.channels: the meter has {', '.join(names)}; choose of them, got {list(wanted)}")
        if twice := next((name for name in wanted if wanted.count(name) > 1), ""):
            raise MeterError(f"meter.channels names {twice} twice, and its joules would count twice; keep one")
        set_ms = self._settings.period_ms
        if set_ms is not None and ident.period_us > set_ms * 1000:
            raise MeterError(
                f"meter.period_ms = {set_ms} is shorter than the meter's own period: use "
                f"{-(-ident.period_us // 1000)}, else each of its readings looks like a gap"
            )
        chosen = [names.index(name) for name in wanted]
        kinds = {_kind(ident.channels[place]) for place in chosen}
        if len(kinds) > 1:
            raise MeterError(f"meter.channels: {', '.join(wanted)} are of different kinds; choose those of one")
        return chosen, kinds.pop()

    def _reading(self, frame: frames.ReadingFrame, arrival_us: int) -> bool:
        if self.ident is None or self.stream is None:
            return False
        values = frame.values(self.ident)
        if values is None:
            return False  # it booted since; its IDENT will come
        if frame.flags & frames.STALE:
            self.stream.skip(frame.sequence)
            return True
        full = bool(frame.flags & frames.SATURATED)
        channels = [self.ident.channels[place] for place in self._chosen]
        counts = [values[place] for place in self._chosen]
        self.trouble = ""
        if self._kind == "energy":
            self._count(channels, tuple(count[0] for count in counts))
            gain_ppm, offset_uw = max(c.gain_ppm for c in channels), sum(c.offset_uw for c in channels)
            step_nj = sum(channel.lsb for channel in channels)
            energy = Sample(
                arrival_us, None, self._energy_nj, gain_ppm, offset_uw, step_nj, frame.t_us, frame.sequence, full
            )
            self.stream.add(energy)
            return True
        self.steps = max(abs(count[-1]) for count in counts)  # of a pair, the current
        powers = [_power_uw(channel, count) for channel, count in zip(channels, counts, strict=True)]
        offset_uw = sum(
            channel.offset_uw + abs(power) * channel.gain_ppm // 1_000_000 + _step_uw(channel, count)
            for channel, power, count in zip(channels, powers, counts, strict=True)
        )
        self.stream.add(Sample(arrival_us, sum(powers), None, 0, offset_uw, 0, frame.t_us, frame.sequence, full))
        return True

    def _count(self, channels: list[frames.Channel], counts: tuple[int, ...]) -> None:
        lasts, self._energies = self._energies or counts, counts
        steps = [(count - last + (1 << 63)) % (1 << 64) - (1 << 63) for count, last in zip(counts, lasts, strict=True)]
        self.steps = max(map(abs, steps))
        if min(steps) < 0:  # one that goes back was reset, and what the others say of that time is no sum
            self._energy_nj -= 1  # the stream sees a counter that fell
            return
        self._energy_nj += sum(step * channel.lsb for step, channel in zip(steps, channels, strict=True))


class Lines:
    """Meters that print."""

    ident: frames.Ident | None = None
    trouble = ""

    def __init__(self, settings: MeterSettings, delay_us: int) -> None:
        self.steps = 0  # nor is a line's last digit a step
        self.notes: deque[str] = deque()  # they have no words for a person
        self.expects = f"a line of {settings.format} with {', '.join(settings.channels)}"
        self.parser = LineParser(settings.format, settings.channels)
        units = {channel.rpartition("=")[2] for channel in settings.channels}
        kind: Kind = "energy" if units & {"j", "mj", "wh", "mwh"} else "point"
        tick_us = next((round(UNITS[unit][1]) for unit in units if unit.startswith("t_")), 1)
        self.stream = Stream(kind, delay_us, WRAP * tick_us)

    def hear(self, arrival_us: int, data: bytes) -> bool:
        """Take bytes; return whether a reading was among them."""
        damaged = self.parser.damaged
        lines = self.parser.feed(data)
        if self.parser.damaged > damaged:
            self.stream.note("lost")
        for line in lines:
            self._reading(line, arrival_us)
        return bool(lines)

    def _reading(self, line: Line, arrival_us: int) -> None:
        self.stream.add(Sample(arrival_us, line.power_uw, line.energy_nj, t_us=line.t_us, sequence=line.sequence))


def _kind(channel: frames.Channel) -> Kind:
    if channel.quantity == frames.ENERGY:
        return "energy"
    return "mean" if channel.flags & frames.MEAN else "point"


def _power_uw(channel: frames.Channel, count: tuple[int, ...]) -> int:
    if channel.quantity == frames.PAIR:
        return count[0] * channel.lsb * count[1] * channel.lsb_current // 1_000_000_000_000
    return count[0] * channel.lsb // 1_000


def _step_uw(channel: frames.Channel, count: tuple[int, ...]) -> int:
    """How far a count's resolution lets the power be off: one step, of either of a pair."""
    if channel.quantity == frames.PAIR:
        return (abs(count[0]) + abs(count[1]) + 1) * channel.lsb * channel.lsb_current // 1_000_000_000_000 + 1
    return channel.lsb // 1_000 + 1
