"""The interview as a page of this machine alone, drawn by NiceGUI, which fetches nothing from elsewhere either."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
from nicegui import app, background_tasks, run, ui

from raypref.config import UserError
from raypref.onboarding.answers import before_and_after, policy_of
from raypref.onboarding.interview import KEYS, Interview
from raypref.tools import console

HOST = "127.0.0.1"
GREY = {"fontSize": 14, "color": "#808080"}
"""Of titles: read on light and on dark."""


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


async def answers(port: int) -> bool:
    """Whether something listens on this port of the machine yet."""
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


def serve(talk: Interview, most: int, port: int, keep: Callable[[], list[str]]) -> None:
    """Show the page until the person is done, whom `keep` then writes, or the command is ended. Raises `UserError`
    where the port is taken."""
    port = port or free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; leave it out for one that is free") from None
    console.say("reading what people of the run would choose")
    _ = talk.of_candidates
    page = Page(talk, most, keep, app.shutdown)
    ui.page("/")(page.draw)

    async def announce() -> None:
        while not await answers(port):
            await asyncio.sleep(0.05)
        console.say(f"open http://{HOST}:{port} in a browser on this machine; Ctrl-C ends without keeping anything")

    app.on_startup(lambda: background_tasks.create(announce()))
    ui.run(
        host=HOST,
        port=port,
        title=f"raypref: {talk.name}",
        show=False,
        reload=False,
        show_welcome_message=False,
        dark=None,
    )


class Page:
    """What is on the page, for the one person whom it is for."""

    def __init__(self, talk: Interview, most: int, keep: Callable[[], list[str]], end: Callable[[], None]) -> None:
        self.talk, self.most, self.keep, self.end = talk, most, keep, end
        self.shown: int | None = None
        self.busy = False

    def draw(self) -> None:
        """The whole page, anew for each visit; the interview goes on where it is."""
        ui.colors(primary="#1f5f99")  # white on it is read easily
        ui.keyboard(on_key=self.pressed)
        with ui.column().classes("w-full max-w-5xl mx-auto gap-4"):
            self.title = ui.label(f"{self.talk.name}, which answer do you prefer?").classes("text-2xl")
            self.title.props("role=heading aria-level=1")
            self.question = ui.column().classes("w-full gap-2")
            self.says = ui.label().classes("text-lg").props("role=status aria-live=polite")
            with ui.element("div").classes("grid grid-cols-1 md:grid-cols-2 w-full gap-4"):
                self.chart, self.places = (ui.echart(each()).classes("h-72") for each in (self.by_choices, self.map))
            self.chart.props('role=img aria-label="accuracy to expect by number of choices"')
            self.places.props('role=img aria-label="map of people by what they would choose"')
            note = "What to expect is said for choices at random. Nothing leaves the machine."
            ui.label(note).classes("text-sm opacity-70")
        self.ask()

    def ask(self) -> None:
        """The next pair, with its buttons."""
        enough = len(self.talk.answers) >= self.most
        self.shown = None if enough else self.talk.next()
        self.question.clear()
        with self.question:
            if self.shown is None:
                ui.label("That is enough, thank you." if enough else "There is no pair left to show.")
            else:
                pair = self.talk.candidates[self.shown].pair
                ui.label(f"{len(self.talk.answers) + 1} of at most {self.most}").classes("text-sm opacity-70")
                ui.label(pair.prompt).classes("text-lg")
                with ui.row().classes("w-full gap-4 no-wrap max-sm:flex-wrap"):
                    for number, text in (("1", pair.chosen), ("2", pair.rejected)):
                        self.button(f"{number}: {text}", number).classes("flex-1 normal-case")
            with ui.row():
                if self.shown is not None:
                    self.button("0: cannot say", "0").props("outline")
                self.button("u: take the last one back", "u").props("outline").set_enabled(bool(self.talk.answers))
                self.button("q: done", "q").props("outline").set_enabled(bool(self.talk.known()))
        self.says.text = self.talk.says()

    def button(self, label: str, key: str) -> Any:
        """A button that does what a key does."""

        async def clicked() -> None:
            await self.act(key)

        return ui.button(label, on_click=clicked).props("no-caps")

    async def pressed(self, event: Any) -> None:
        """A key of the keyboard."""
        if event.action.keydown and not event.action.repeat:
            await self.act(str(event.key.name))

    async def act(self, key: str) -> None:
        """What a key or its button means; while something is computed others mean nothing."""
        if self.busy or key not in {*KEYS, "u", "q"} or (key in KEYS and self.shown is None):
            return
        if key == "q":
            if self.talk.known():
                await self.finish()
            return
        self.busy = True
        try:
            if key == "u":
                self.talk.undo()
            elif self.shown is not None:
                self.talk.answer(self.shown, KEYS[key])
            options = await run.io_bound(self.map)
            self.ask()
            for chart, values in ((self.places, options), (self.chart, self.by_choices())):
                chart.options.clear()
                chart.options.update(values)
                chart.update()
        finally:
            self.busy = False

    async def finish(self) -> None:
        """Keep the person, say so, show what a policy answers before and after, and end."""
        self.busy = True
        self.question.clear()
        lines = await run.io_bound(self.keep)
        self.title.text, self.says.text = f"Thank you, {self.talk.name}", ""
        with self.question:
            for line in lines:
                ui.label(line)
            if policy_of(self.talk.learner.folder) and self.talk.learner.d:
                box = ui.input("Ask the run's policy something", value=self.talk.candidates[0].pair.prompt)
                box.classes("w-full")

                async def answered() -> None:
                    (z,) = self.talk.learned().z
                    found = await run.io_bound(before_and_after, self.talk.learner, z, box.value or "?")
                    if found:
                        ui.label(f"before it knew you: {found.before}").move(self.question)
                        ui.label(f"after: {found.after}").move(self.question)

                ui.button("Before and after", on_click=answered).props("no-caps")
            ui.button("Close", on_click=self.end).props("no-caps outline")

    def by_choices(self) -> dict[str, Any]:
        """The accuracy to expect by the number of choices, with its interval, and where one is."""
        expected, count = self.talk.expected, len(self.talk.known())
        series: list[dict[str, Any]] = []
        if expected:
            after = [(n, expected.after(n)) for n in expected.sizes]

            def line(name: str, values: list[float], style: str) -> dict[str, Any]:
                data = [[n, round(100 * value, 1)] for (n, _), value in zip(after, values, strict=True)]
                return {"type": "line", "name": name, "data": data, "lineStyle": {"type": style}, "color": "#3b76c4"}

            series = [line("mean", [e.mean for _, e in after], "solid")]
            if all(e.sure for _, e in after):
                series += [
                    line("95 % interval", [e.low for _, e in after], "dashed"),
                    line("95 % interval", [e.high for _, e in after], "dashed"),
                ]
            if count:
                you = [[min(count, expected.sizes[-1]), round(100 * expected.after(count).mean, 1)]]
                series.append({"type": "scatter", "name": "you", "data": you, "symbolSize": 16, "color": "#d1495b"})
        return {
            "title": {"text": "Accuracy to expect, %", "textStyle": GREY},
            "grid": {"left": 40, "right": 20, "top": 40, "bottom": 45},
            "xAxis": {
                "type": "log",
                "logBase": 2,
                "min": 1,
                "name": "choices",
                "nameLocation": "middle",
                "nameGap": 28,
            },
            "yAxis": {"type": "value", "scale": True},
            "tooltip": {},
            "series": series,
        }

    def map(self) -> dict[str, Any]:
        """People of the run near whom would choose like them, and where one lies."""
        places, own = self.talk.map()
        result = self.talk.learner.result
        ids, of = result["clients"], result["groups"]["of"]
        names = [
            f"{ids[c]}{', ' + result['groups']['names'][of[c]] if of and of[c] >= 0 else ''}"
            for c in self.talk.committee
        ]
        data = [{"name": name, "value": np.round(at, 3).tolist()} for name, at in zip(names, places, strict=True)]
        series = [{"type": "scatter", "name": "people of the run", "data": data, "symbolSize": 9, "color": "#3b76c4"}]
        if own is not None:
            mine = [{"name": "you", "value": np.round(own, 3).tolist()}]
            series.append({"type": "scatter", "name": "you", "data": mine, "symbolSize": 18, "color": "#d1495b"})
        return {
            "title": {"text": "Who would choose alike (you: red)", "textStyle": GREY},
            "grid": {"left": 40, "right": 20, "top": 40, "bottom": 30},
            "xAxis": {"type": "value", "scale": True, "axisLabel": {"show": False}, "axisLine": {"onZero": False}},
            "yAxis": {"type": "value", "scale": True, "axisLabel": {"show": False}, "axisLine": {"onZero": False}},
            "tooltip": {"formatter": "{b}"},
            "series": series,
        }
