"""`privcal federation calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privcal.calibration import default
from privcal.cli.calibrate_run import (
    Again,
    Aggregation,
    Asked,
    CampaignName,
    Epsilon,
    MaxRows,
    MethodName,
    MethodOptions,
    MinSources,
    PublicRows,
    Request,
    SketchOut,
    check_files,
    check_kept,
    make_method,
    run,
    secure_options,
)
from privcal.cli.console import note
from privcal.cli.options import Json, MapOut, PageOut, check_page
from privcal.data.files import check_outputs
from privcal.data.plausible import MAX_SITE_ROWS
from privcal.data.sources import read_public
from privcal.report.result_pages import UNIT
from privcal.secure import need_cryptography
from privcal.trusted.errors import InputError

Me = Annotated[Path, typer.Option("--as", help="Your folder, with your keys and your roster.")]
Mailbox = Annotated[
    str,
    typer.Option(
        help="Where letters are left and fetched: a folder, sftp://USER@HOST/PATH, s3://BUCKET/PREFIX, "
        "or flare: and the folder of your FLARE admin's kit. What a server asks for is in "
        "credentials.toml of your folder."
    ),
]


def calibrate(
    me: Me,
    mailbox: Mailbox,
    model: Annotated[str, typer.Option(help="The model's name.")],
    out: MapOut,
    method: MethodName = None,
    option: MethodOptions = None,
    public: PublicRows = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE", help="Do not ask this site; may be repeated."),
    ] = None,
    min_sources: MinSources = None,
    epsilon: Epsilon = 1.0,
    aggregation: Aggregation = "each",
    rows_per_person: Annotated[
        int, typer.Option(help="How many rows of a person the sites count; secure sums tell it.")
    ] = 1,
    max_rows: MaxRows = None,
    campaign: CampaignName = None,
    again: Again = False,
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds that sites have for each round of letters.")
    ] = 120,
    every: Annotated[
        float,
        typer.Option(
            min=0.05, help="Seconds between two looks at the mailbox; less while letters come."
        ),
    ] = 1,
    sketch: SketchOut = None,
    html: PageOut = None,
    as_json: Json = False,
) -> None:
    """Recalibrate from the private answers of a federation's sites, and write the map.

    Each site on your roster gets letters of its own through the mailbox, which is trusted with
    nothing. The same command never pays twice: after an interruption it sends the same letters, and
    it reads the answers of a finished run again. Give a method's further settings with --option, as
    event=1 or leave_alone=true.

    Examples:

    `privcal federation calibrate --as ann --mailbox /mnt/letters --model resnet50-v3 --out map.json`

    `privcal federation calibrate --as ann --mailbox /mnt/letters --model resnet50-v3 --aggregation secure --out map.json`
    """
    need_cryptography()
    secure = secure_options(aggregation)
    if secure is not None and rows_per_person != 1:
        raise InputError(
            "in secure sums the sites tell how many rows of a person count: leave out --rows-per-person"
        )
    named, method = method, method or default.METHOD
    check_files(method, public=public, sketch=sketch)
    clean = None if public is None else read_public(public)
    chosen = make_method(method, option, clean)
    check_kept(chosen, sketch=sketch)
    from privcal.transport.calibrator import distant  # cryptography
    from privcal.transport.keys import Keys

    asker = Keys.load(me).name
    request = Request(
        chosen,
        epsilon,
        public,
        model,
        asker,
        campaign,
        min_sources,
        out,
        sketch,
        again,
        named=named is not None,
        secure=secure,
        class_names=None if clean is None else clean.class_names,
    )
    request.check([public], None)
    check_page(html)
    check_outputs([out, sketch, html], [public])
    about = {"federation": str(me.resolve()), "rows_per_person": rows_per_person}
    begun = request.begin(**about)
    if begun.finished and (left := set(without or ()) & set(begun.sites)):
        raise InputError(
            f"campaign {begun.plan['campaign']} has the answer of {min(left)}: choose another --out, "
            "or ask anew, and pay again, with --again"
        )
    finished, most = begun.finished, MAX_SITE_ROWS if max_rows is None else max_rows
    if not finished:
        note(f"letters over {mailbox}: a look every {every:g} s, and {wait:g} s for each round")
    asked = Asked(
        lambda tell: distant(
            me,
            mailbox,
            begun,
            secure,
            max_rows=most,
            rows_per_person=rows_per_person,
            without=without or (),
            wait=wait,
            every=every,
            warn=note,
            tell=tell,
        ),
        begun,
        UNIT,
        lambda: finished,
        most,
    )
    run(request, asked, clean, None, html, as_json)
