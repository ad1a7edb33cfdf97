"""The corruptions against slow references, Pillow and the theory of their noise."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip(
    "torch", reason="the corruptions need torch: pip install 'privcal[train]'"
)

from privcal.lab import corruptions  # noqa: E402
from privcal.lab.corruptions import (  # noqa: E402
    CORRUPTIONS,
    SEVERITIES,
    contact_sheet,
    corrupt,
    read_frost,
)
from privcal.lab.corruptions.filters import CounterRng, mix  # noqa: E402
from privcal.lab.corruptions.kinds import (  # noqa: E402
    LEVELS,
    drawn_frost,
    poisson_table,
    shrink,
)
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support import corruptions_reference as reference  # noqa: E402

SEED, FIRST = 7, 40


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small batches; with more threads they would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def flat(side, *levels, n=1):
    return torch.tensor(levels, dtype=torch.uint8).expand(n, side, side, 3).contiguous()


def photos(side, n):
    """Smooth shapes, hard edges and grain, with both ends of the scale."""
    rng = np.random.default_rng(side)
    y, x = np.mgrid[:side, :side] / side
    found = []
    for _ in range(n):
        waves = [
            128 + 110 * np.sin(rng.normal() * 6 * x + rng.normal() * 6 * y + rng.random() * 6)
            for _ in range(3)
        ]
        image = np.stack(waves, axis=2) + rng.normal(0, 15, (side, side, 3))
        top, left = rng.integers(0, side // 2, 2)
        image[top : top + side // 3, left : left + side // 3] += rng.choice([-150, 150])
        found.append(np.clip(image, 0, 255).astype(np.uint8))
    return torch.from_numpy(np.stack(found))


def awkward(side):
    parts = [flat(side, 0, 0, 0), flat(side, 255, 255, 255), flat(side, 10, 200, 77)]
    return torch.cat([photos(side, 2 if side == 64 else 3), *parts])


@pytest.fixture(scope="module")
def frost_images():
    """Seven, of several sizes, one of them just large enough for 64 pixels."""
    rng = np.random.default_rng(5)
    sizes = [(215, 300), (300, 215), (250, 250), (400, 230), (240, 333), (300, 300), (300, 300)]
    return [torch.from_numpy(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_is_that_of_the_reference(name, side, frost_images):
    images = awkward(side)
    more = {"frost_images": frost_images} if name == "frost" else {}
    for severity in SEVERITIES:
        result = corrupt(images, name, severity, seed=SEED, first=FIRST, frost=frost_images)
        assert result.dtype == torch.uint8
        assert result.shape == images.shape
        for i, image in enumerate(images.numpy()):
            rng = CounterRng(name, severity, SEED, torch.tensor([FIRST + i]))
            settings = reference.constants(name, severity, side)
            levels = getattr(reference, name)(image, rng, *settings, **more)
            expected = np.clip(levels, 0, 255)
            got = result[i].numpy().astype(int)
            if name in ("pixelate", "jpeg_compression"):  # Pillow itself
                np.testing.assert_array_equal(got, expected)
                continue
            # One level apart only where rounding decides.
            tied = np.abs(expected - np.round(expected)) < 2 / 1024
            assert np.abs(got - np.floor(expected))[~tied].max(initial=0) == 0
            assert np.abs(got - np.round(expected))[tied].max(initial=0) <= 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_row_does_not_depend_on_its_batch(name, monkeypatch):
    images = photos(32, 7)
    whole = corrupt(images, name, 4, seed=3, first=10)
    assert torch.equal(corrupt(images, name, 4, seed=3, first=10), whole)
    alone = [corrupt(images[i : i + 1], name, 4, seed=3, first=10 + i) for i in range(7)]
    assert torch.equal(torch.cat(alone[::-1]).flip(0), whole)
    monkeypatch.setitem(corruptions._CHUNK_PIXELS, "cpu", 3 * 32 * 32)
    assert torch.equal(corrupt(images, name, 4, seed=3, first=10), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_work_is_done_where_the_images_are(name):
    # The device "meta" computes nothing, but refuses to be mixed with another.
    images = torch.empty(2, 32, 32, 3, dtype=torch.uint8, device="meta")
    assert corrupt(images, name, 5).device.type == "meta"


RANDOM = [n for n in CORRUPTIONS if n not in
          ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")]  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_seed_place_and_severity_change_the_draws(name):
    same = photos(32, 1).repeat(2, 1, 1, 1)
    result = corrupt(same, name, 3)
    assert not torch.equal(result[0], result[1])
    assert not torch.equal(corrupt(same, name, 3, seed=1), result)
    keys = [
        CounterRng(n, severity, seed, torch.arange(2)).uniform(4)
        for n, severity, seed in ((name, 3, 0), (name, 4, 0), (name, 3, 1), (name + "x", 3, 0))
    ]
    assert len(torch.stack(keys).unique()) == 4 * 2 * 4


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_no_images_give_no_images(name, side):
    assert corrupt(torch.empty(0, side, side, 3, dtype=torch.uint8), name, 2).shape[0] == 0


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize(
    "name",
    ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "motion_blur", "zoom_blur",
     "fog", "brightness", "contrast", "pixelate", "jpeg_compression"],
)  # fmt: skip
def test_a_higher_severity_changes_more(name, side):
    images = photos(side, 8)
    change = [
        float((corrupt(images, name, s).float() - images.float()).abs().mean()) for s in SEVERITIES
    ]
    if name == "motion_blur":  # 32 px, severities 3 and 4 have the same σ and differ in the tail
        change = change[::2]
    assert change[0] > 0.1
    assert all(b > a for a, b in pairwise(change))


# Noise on a flat grey of level 100, which leaves room on both sides.
GREY = 100


def noise_on_grey(name, severity, side):
    return corrupt(flat(side, GREY, GREY, GREY, n=16), name, severity).numpy().astype(float)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_has_its_deviation(severity):
    values = noise_on_grey("gaussian_noise", severity, 32).ravel()
    deviation = 255 * (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    # 49,152 values; cutting to whole levels lowers the mean by a half and adds 1/12.
    assert values.mean() == pytest.approx(GREY - 0.5, abs=5 * deviation / math.sqrt(values.size))
    assert values.std() == pytest.approx(math.hypot(deviation, 12**-0.5), rel=0.02)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_has_the_variance_of_photons(severity):
    values = noise_on_grey("shot_noise", severity, 32).ravel()
    photons = (500, 250, 100, 75, 50)[severity - 1]
    count = np.arange(2 * photons + 100)
    chance = stats.poisson.pmf(count, GREY / 255 * photons)
    level = np.floor(np.minimum(count / photons * 255, 255) + 1e-9)
    mean = chance @ level
    variance = chance @ (level - mean) ** 2
    assert values.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / values.size))
    assert values.var() == pytest.approx(variance, rel=0.04)


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_replaces_its_share(severity, side):
    values = noise_on_grey("impulse_noise", severity, side)
    share = reference.constants("impulse_noise", severity, side)[0]
    for level in (0, 255):
        expected = values.size * share / 2
        assert abs((values == level).sum() - expected) < 5 * math.sqrt(expected)
    changed = (values != GREY).reshape(-1, 3)
    both = changed[:, 0] & changed[:, 1]  # channels are hit independently
    assert both.mean() < 3 * share**2 + 1e-3


def test_the_table_of_photons_is_that_of_the_poisson_law():
    for photons in (15, 500):
        table = poisson_table(float(photons)).numpy()
        rate = np.arange(256)[:, None] * photons / 255
        expected = stats.poisson.cdf(np.arange(table.shape[1]), rate)
        np.testing.assert_allclose(table, expected, atol=1e-11)


# The randomness itself.


def test_the_hash_is_splitmix64():
    def by_hand(word):
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    words = [0x9E3779B97F4A7C15, 1, 2**63, 2**64 - 1]
    signed = torch.tensor([w - 2**64 if w >= 2**63 else w for w in words])
    got = [int(v) % 2**64 for v in mix(signed)]
    assert got == [by_hand(w) for w in words]
    assert got[0] == 0xE220A8397B1DCDAF  # the published first output from seed 0


def test_uniform_draws_are_uniform_and_unrelated():
    rng = CounterRng("fog", 1, 0, torch.arange(200)).uniform(500).numpy()
    assert rng.min() >= 0
    assert rng.max() < 1
    assert stats.kstest(rng.ravel(), "uniform").pvalue > 1e-4
    low = rng * 2**20 % 1  # the bits behind the first twenty
    for values in (rng, low):
        counts = np.histogram(values, bins=256, range=(0, 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-4
        pairs = np.histogram2d(values[:, ::2].ravel(), values[:, 1::2].ravel(), bins=16)[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
        pairs = np.histogram2d(values[::2].ravel(), values[1::2].ravel(), bins=16)[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
    others = [
        CounterRng("fog", 1, 1, torch.arange(200)).uniform(500),
        CounterRng("fog", 2, 0, torch.arange(200)).uniform(500),
        CounterRng("snow", 1, 0, torch.arange(200)).uniform(500),
        CounterRng("fog", 1, 0, torch.arange(1, 201)).uniform(500),
    ]
    for other in [*(o.numpy() for o in others), np.roll(rng, 1, axis=1), np.roll(rng, 3)]:
        assert abs(np.corrcoef(rng.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(rng.size)


def test_calls_take_new_draws_and_normals_are_normal():
    rng = CounterRng("snow", 1, 0, torch.arange(100))
    first, second = rng.normal(3, 67).numpy(), rng.normal(3, 67).numpy()
    assert first.shape == (100, 3, 67)
    assert stats.kstest(np.concatenate([first, second]).ravel(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / math.sqrt(first.size)
    halves = first.reshape(100, -1)  # cosines, then sines of the same angles
    assert abs(np.corrcoef(halves[:, :100].ravel(), halves[:, 101:].ravel())[0, 1]) < 0.05
    whole = rng.whole(-2, 2, 500)
    assert set(whole.unique().tolist()) == {-2, -1, 0, 1}
    assert stats.chisquare(np.bincount(whole.numpy().ravel() + 2)).pvalue > 1e-4


# Frost.


def test_shrinking_by_a_fifth_takes_every_fifth_pixel():
    image = photos(64, 1)[0]
    assert torch.equal(shrink(image, 0.2), image[2:63:5, 2:63:5].float()[:13, :13])


def test_the_drawn_images_are_like_photographs_of_frost():
    """In the crops of 32 pixels that are laid over images: as bright, as even, as fine."""
    within, coarse = [], []
    for image, (mean, deviation) in zip(drawn_frost(), LEVELS, strict=True):
        assert image.shape == (600, 1000, 3)
        levels = image.float()
        assert levels.mean() == pytest.approx(mean, abs=3)
        assert levels.std() == pytest.approx(deviation, abs=3)
        assert levels[..., 2].mean() > levels[..., 0].mean()  # bluish
        crops = shrink(image, 0.2).mean(2).unfold(0, 32, 16).unfold(1, 32, 16).reshape(-1, 32, 32)
        within.append(float(crops.std((1, 2)).mean()))
        quarters = crops.reshape(-1, 2, 16, 2, 16).mean((2, 4)).reshape(-1, 4)
        coarse.append(float(quarters.std(1).mean()))
    # The photographs have 22 and 9, the frost that was drawn before 42 and 21.
    assert np.mean(within) == pytest.approx(22, abs=3)
    assert np.mean(coarse) < 14
    assert not torch.equal(drawn_frost()[1], drawn_frost()[2])


def test_only_the_first_five_images_of_frost_are_used():
    levels = [torch.full((320, 320, 3), 40 * i, dtype=torch.uint8) for i in range(6)]
    black = flat(32, 0, 0, 0, n=200)
    seen = corrupt(black, "frost", 1, frost=levels).unique().tolist()
    assert seen == [0, 8, 16, 24, 32]


def test_frost_images_are_read_in_the_order_of_their_names(tmp_path, frost_images):
    from PIL import Image

    Image.fromarray(frost_images[1].numpy()).save(tmp_path / "frost2.png")
    Image.fromarray(frost_images[0].numpy()).save(tmp_path / "frost1.PNG")
    Image.new("L", (200, 250), 90).save(tmp_path / "frost3.jpg")
    (tmp_path / "notes.txt").write_text("not an image")
    read = read_frost(tmp_path)
    assert torch.equal(read[0], frost_images[0])
    assert torch.equal(read[1], frost_images[1])
    assert read[2].shape == (250, 200, 3)
    assert len(read) == 3


def test_a_frost_image_that_just_fits_is_used_whole():
    image = photos(64, 1)[0].repeat(3, 3, 1)[:160, :160]
    result = corrupt(flat(32, 0, 0, 0, n=2), "frost", 2, frost=[image])
    expected = reference.cut(0.3 * image[2::5, 2::5].numpy())
    np.testing.assert_array_equal(result[0].numpy(), expected)
    assert torch.equal(result[0], result[1])


def test_bad_frost_is_refused(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        read_frost(tmp_path / "none")
    with pytest.raises(InputError, match="no PNG or JPEG file"):
        read_frost(tmp_path)
    (tmp_path / "frost1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(InputError, match=r"frost1\.png is not a readable JPEG or PNG file"):
        read_frost(tmp_path)
    images = photos(32, 1)
    small = torch.zeros(400, 150, 3, dtype=torch.uint8)
    with pytest.raises(InputError, match="image 1 is 150 by 400 pixels"):
        corrupt(images, "frost", 1, frost=[small])
    with pytest.raises(InputError, match="at least one image;"):
        corrupt(images, "frost", 1, frost=[])
    with pytest.raises(InputError, match="image 1 must be"):
        corrupt(images, "frost", 1, frost=[small.float()])


# Refusals and the sheet.


@pytest.mark.parametrize(
    ("images", "name", "severity", "message"),
    [
        (torch.zeros(1, 32, 32, 3).byte(), "rain", 1, "no corruption 'rain'"),
        (torch.zeros(1, 32, 32, 3).byte(), "fog", 0, "severity must be .* not 0"),
        (torch.zeros(1, 32, 32, 3).byte(), "fog", 6, "severity must be .* not 6"),
        (torch.zeros(1, 32, 32, 3).byte(), "fog", 1.5, "severity must be .* not 1.5"),
        (torch.zeros(1, 32, 32, 3), "fog", 1, "uint8"),
        (np.zeros((1, 32, 32, 3), np.uint8), "fog", 1, "torch tensor of uint8"),
        (torch.zeros(32, 32, 3).byte(), "fog", 1, r"\(n, side, side, 3\), not \(32, 32, 3\)"),
        (torch.zeros(1, 3, 32, 32).byte(), "fog", 1, r"\(n, side, side, 3\)"),
        (torch.zeros(1, 32, 64, 3).byte(), "fog", 1, r"\(n, side, side, 3\)"),
        (torch.zeros(1, 28, 28, 3).byte(), "fog", 1, "32 or 64 pixels wide, not 28"),
    ],
)
def test_bad_input_is_refused(images, name, severity, message):
    with pytest.raises(InputError, match=message):
        corrupt(images, name, severity)


def test_the_contact_sheet_shows_all(tmp_path):
    from PIL import Image

    images = photos(32, 2)
    contact_sheet(images, tmp_path / "sheet.png", seed=1)
    with Image.open(tmp_path / "sheet.png") as file:
        sheet = np.asarray(file)
    cell = 128 + 4
    sheet = sheet[-15 * cell :, -12 * cell :]  # what is above and to the left are words
    for row, column, expected in (
        (0, 0, images[0]),
        (3, 2, corrupt(images, CORRUPTIONS[3], 2, seed=1)[0]),
        (14, 11, corrupt(images, CORRUPTIONS[14], 5, seed=1)[1]),
    ):
        tile = sheet[row * cell : row * cell + 128, column * cell : column * cell + 128]
        np.testing.assert_array_equal(tile[2::4, 2::4], expected.numpy())
    with pytest.raises(InputError, match=r"must end in \.png"):
        contact_sheet(photos(32, 1), tmp_path / "sheet.jpg", seed=1)
    with pytest.raises(InputError, match="at least one image"):
        contact_sheet(photos(32, 1)[:0], tmp_path / "sheet.png", seed=1)
