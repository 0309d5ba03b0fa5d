"""``himalia clock``: confirm the server's clock after it jumped."""

from __future__ import annotations

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.terminal.output import print_json, write_line
from himalia.protocol.models import ClockConfirmed

app = make_app()


@app.callback()
def clock() -> None:
    """Confirm the clock of the server's machine, after a warning that it jumped.

    Example:

        himalia clock confirm
    """


@app.command("confirm")
def confirm(url: Url = None, token: Token = None, json: Json = False) -> None:
    """Confirm that the clock of the server's machine is right, after a warning that it jumped.

    Check that clock first. From then on records are dated by it, and retention by age resumes, by the time that really
    passed. Needs 'manage' on '>'.

    Examples:

        himalia clock confirm

        himalia clock confirm --json
    """

    async def call() -> ClockConfirmed:
        async with connect(url, token) as client:
            return await client.confirm_clock()

    done = run_async(call())
    if json:
        print_json(done)
    elif done.warning is None:
        write_line("there is nothing to confirm: the server trusts its clock")
    else:
        write_line(f"confirmed; the warning was: {done.warning}")
