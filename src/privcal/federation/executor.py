"""What runs at a site when a job asks it something.

The class is part of the site's own installation. It takes no arguments, so a job that passes any
fails; everything it needs is in the site's `local/` and `startup/` folders. Whatever happens, the
reply is an answer or one of the fixed refusal codes, after a delay that does not depend on rows.
"""

from __future__ import annotations

import math
import time
import traceback
from fractions import Fraction
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from privcal.errors import Refused
from privcal.federation.messages import Reply, open_message
from privcal.federation.site import DELAY, Site
from privcal.privacy.epsilon import NANO
from privcal.queries import GRID

ERRORS = "privcal-errors.log"
"""In `local/`, for the owner: why a question was not answered. Never sent anywhere."""


class SiteExecutor(Executor):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        import opendp.prelude  # noqa: F401  # takes seconds: before the first question comes

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        arrived = time.monotonic()
        delay = DELAY
        try:
            workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            folder = Path(workspace.get_site_config_dir()).parent
            site = Site.load(folder)
            delay = site.delay
            app = workspace.get_app_dir(fl_ctx.get_job_id())
            reply = answer(site, shareable.get("message"), app)
        except Refused as refusal:
            reply = Reply(refused=refusal.code)
            _note(fl_ctx)
        except BaseException:
            reply = Reply(refused="unavailable")
            _note(fl_ctx)
        hold(arrived, delay)
        sent = Shareable()
        sent["reply"] = reply.text()
        return sent


def answer(site: Site, message: Any, app: str) -> Reply:
    """The site's reply to a message that came with the job in folder `app`."""
    root = str(site.folder / "startup" / "rootCA.pem")
    asker, question = open_message(message, root)
    verified, signers = verify_folder_signature_and_get_signers(app, root)
    if not verified or [signer[0] for signer in signers] != [asker]:
        raise Refused("asker")  # somebody else's job carries this question
    source = site.source()
    given = source.answer(
        question.query,
        Fraction(question.nano_epsilon, NANO),
        question.request_id,
        asker,
        question.model,
    )
    values = tuple(round(v * GRID) for v in given.values)
    return Reply(values, source.rows_per_person, site.max_rows, given.ledger)


def hold(arrived: float, delay: float) -> None:
    """Wait until `delay` after arrival, or the next multiple of it."""
    passed = time.monotonic() - arrived
    time.sleep(max(0.0, max(1, math.ceil(passed / delay)) * delay - passed))


def _note(fl_ctx: FLContext) -> None:
    """Tell the owner, and nobody else, what went wrong."""
    try:
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        path = Path(workspace.get_site_config_dir()) / ERRORS
        with path.open("a", encoding="utf-8") as log:
            path.chmod(0o600)
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{traceback.format_exc()}\n")
    except Exception:  # a full disk must not change the reply
        return
