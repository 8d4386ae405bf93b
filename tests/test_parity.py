"""The recipes' arithmetic against PyTorch, live: the same weights, data and
noise go through both; outputs, every gradient tensor and the losses of 20 steps
must agree. The thresholds are the constants below."""

import statistics
import subprocess
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from torch_models import Discriminator, EsrganDiscriminator, EsrganGenerator
from torch_models import Generator, Vgg19Features, Vit, count
from trainer import BUILD, clean_environment

# Relative error in the 2-norm of a tensor, fp32 against fp32. Kernels differ
# (channels_last, fused attention), so sums are taken in another order.
FORWARD = 1e-5
GRADIENT = 1e-4
# The same code with weights in fp64 against PyTorch in fp64: every tensor at
# full size. Rounding is 1e-16, so this shows that both compute the same thing.
DOUBLE = 1e-9
# (Leaky)ReLU has a kink: in fp32 a value or two of two million round to its other
# side, and each moves the gradients before it by up to sqrt(1 / size of the
# layer), 4e-3 for the last. So in fp32 every tensor of both sizes must be within
# KINK of fp64 and of PyTorch, and the typical one of the small model and of the
# large D within GRADIENT. (Measured once at full size, from fp64: with one value
# on the other side of D's first kink, 1e-3 in D's first weight and all of G,
# which its gradient reaches through it; 7e-7 to 2.4e-6 in D's other ten tensors,
# where PyTorch has 2e-7 to 1.3e-6.)
KINK = 1e-2
# Adam's first step is the sign of a gradient, however small; G's gradients are
# compared behind a D that did not move.
STILL = 1e-30
# Of the losses over 20 steps: Adam's division makes small gradients loud.
LOSS = 2e-3
# bf16 has 8 bits of mantissa. Absolute, on losses of about 1.
LOSS_BF16 = 0.1


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def error(ours, theirs):
    ours, theirs = ours.double(), theirs.detach().double()
    assert ours.shape == theirs.shape
    return ((ours - theirs).norm() / theirs.norm().clamp(min=1e-12)).item()


def probe(folder, tensors, **options):
    defaults = {
        "precision": "fp32",
        "beta1": 0.9,
        "weight_decay": 0,
        "label_smoothing": 0,
        "clip": 0,
        "strategy": "auto",
    }
    text = {key: str(value) for key, value in (defaults | options).items()}
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in tensors.items()},
        folder / "in.safetensors",
        metadata=text,
    )
    subprocess.run(
        [BUILD / "bin" / "parity_probe", "in.safetensors", "out.safetensors"],
        cwd=folder,
        env=clean_environment(),
        check=True,
        timeout=600,
    )
    return load_file(folder / "out.safetensors")


def initial(module, prefix=""):
    return {
        f"init.{prefix}{name}": tensor.clone()
        for name, tensor in module.state_dict().items()
    }


def autocast(precision):
    if precision == "bf16":
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


def check_gradients(ours, theirs, typical, worst):
    """Every tensor of `theirs` is there; returns how many."""
    errors = {n: error(ours[f"grad.{n}"], gradient) for n, gradient in theirs.items()}
    assert statistics.median(errors.values()) < typical, errors
    assert max(errors.values()) < worst, errors
    return len(errors)


def check_final(ours, state, reach):
    """Weights and running statistics after all steps. `reach` is how far Adam
    can move a weight: they may be apart by a tenth of it on average."""
    assert {f"final.{n}" for n in state} == {n for n in ours if n[:6] == "final."}
    for name, tensor in state.items():
        mine = ours[f"final.{name}"]
        if "running" in name or "num_batches" in name:
            assert error(mine, tensor) < 1e-2, name
        else:
            apart = (mine - tensor).abs().mean().item()
            assert apart < 0.1 * reach, f"{name}: {apart:.1e}"


def gradients(module, prefix=""):
    return {f"{prefix}{n}": p.grad.clone() for n, p in module.named_parameters()}


def widened(values):
    return values.float() if values.dtype == torch.bfloat16 else values


class DcganReference:
    """The usual script: BCE on the sigmoid, D on real and on detached fake, one
    update; then G on D(fake), which also fills D's gradients in vain."""

    def __init__(self, size, channels, nz, width, lr):
        self.g = Generator(size, channels, nz, width)
        self.d = Discriminator(size, channels, width)
        self.adam_g = torch.optim.Adam(self.g.parameters(), lr, (0.5, 0.999))
        self.adam_d = torch.optim.Adam(self.d.parameters(), lr, (0.5, 0.999))

    def double(self):
        self.g.double()
        self.d.double()
        return self

    def step(self, real, noise, precision):
        with autocast(precision):
            fake = self.g(noise)
            on_real = widened(self.d(real))
            on_fake = widened(self.d(fake.detach()))
        ones, zeros = torch.ones_like(on_real), torch.zeros_like(on_fake)
        loss_d = functional.binary_cross_entropy(on_real, ones)
        loss_d = loss_d + functional.binary_cross_entropy(on_fake, zeros)
        self.adam_d.zero_grad()
        loss_d.backward()
        self.adam_d.step()
        self.gradients = gradients(self.d, "discriminator.")
        with autocast(precision):
            again = widened(self.d(fake))
        loss_g = functional.binary_cross_entropy(again, ones)
        self.adam_g.zero_grad()
        loss_g.backward()
        self.adam_g.step()
        self.gradients |= gradients(self.g, "generator.")
        means = [value.mean() for value in (on_real, on_fake, again)]
        return [value.item() for value in (loss_d, loss_g, *means)]


def compare_dcgan(
    folder, size, channels, nz, width, batch, steps, lr=2e-4, precision="fp32"
):
    reference = DcganReference(size, channels, nz, width, lr)
    real = torch.rand(steps, batch, channels, size, size) * 2 - 1
    noise = torch.randn(steps, batch, nz, 1, 1)
    if precision == "fp64":
        reference.double()
        real, noise = real.double(), noise.double()
    ours = probe(
        folder,
        initial(reference.g, "generator.")
        | initial(reference.d, "discriminator.")
        | {"real": real, "noise": noise},
        recipe="dcgan",
        optim="adam",
        precision=precision,
        lr=lr,
        beta1=0.5,
        image_size=size,
        channels=channels,
        nz=nz,
        ngf=width,
        ndf=width,
    )
    # Without the sigmoid, which our D leaves to the loss; statistics restored.
    state = {n: t.clone() for n, t in reference.d.state_dict().items()}
    state_g = {n: t.clone() for n, t in reference.g.state_dict().items()}
    with torch.no_grad():
        images = reference.g(noise[0])
        logits = reference.d.main[:-1](real[0]).flatten()
    reference.d.load_state_dict(state)
    reference.g.load_state_dict(state_g)
    limit = DOUBLE if precision == "fp64" else FORWARD
    assert error(ours["forward.generator"], images) < limit
    assert error(ours["forward.discriminator"], logits) < limit
    theirs = [reference.step(real[i], noise[i], "fp32") for i in range(steps)]
    return ours, torch.tensor(theirs, dtype=real.dtype), reference


def test_dcgan_full_size(tmp_path):
    """The published model: counts, forward, each gradient, the losses."""
    ours, metrics, reference = compare_dcgan(tmp_path, 64, 3, 100, 64, 8, 1, STILL)
    assert count(reference.g) == 3_576_704
    assert count(reference.d) == 2_765_568
    # Each is reduced once a step: 25.4 MB, not the 47.5 of D three times.
    assert ours["counts"].tolist() == [3_576_704, 2_765_568] * 2
    assert 4 * sum(ours["counts"].tolist()[2:]) == pytest.approx(25.4e6, rel=0.01)
    torch.testing.assert_close(ours["metrics"].float(), metrics, rtol=1e-4, atol=1e-5)
    assert check_gradients(ours, reference.gradients, KINK, KINK) == 24
    # The seed again, so that fp64 starts from the same weights and data.
    torch.manual_seed(0)
    folder = tmp_path / "fp64"
    folder.mkdir()
    double, metrics, truth = compare_dcgan(
        folder, 64, 3, 100, 64, 8, 1, STILL, precision="fp64"
    )
    torch.testing.assert_close(double["metrics"], metrics, rtol=DOUBLE, atol=DOUBLE)
    assert check_gradients(double, truth.gradients, DOUBLE, DOUBLE) == 24
    assert check_gradients(ours, truth.gradients, KINK, KINK) == 24


def test_dcgan_full_size_gradients_of_d(tmp_path):
    """Against fp64 from the same weights and data, typically within GRADIENT. Of a
    million values before the ReLUs one may lie within rounding of the kink, which
    spoils that draw, ours or PyTorch's; what is wrong is wrong in every draw."""
    typical = []
    for seed in range(5):
        sides = {}
        for precision in ("fp32", "fp64"):
            folder = tmp_path / f"{precision}-{seed}"
            folder.mkdir()
            torch.manual_seed(seed)
            sides[precision] = compare_dcgan(
                folder, 64, 3, 100, 64, 8, 1, STILL, precision=precision
            )
        ours = sides["fp32"][0]
        of_d = {
            name: error(ours[f"grad.{name}"], gradient)
            for name, gradient in sides["fp64"][2].gradients.items()
            if name.startswith("discriminator.")
        }
        assert len(of_d) == 11 and max(of_d.values()) < KINK, of_d
        typical.append(statistics.median(of_d.values()))
        if typical[-1] < GRADIENT:
            return
    pytest.fail(f"no draw of five is within {GRADIENT}: {typical}")


def test_dcgan_small_gradients(tmp_path):
    ours, _, reference = compare_dcgan(tmp_path, 32, 1, 20, 16, 8, 1, STILL)
    assert check_gradients(ours, reference.gradients, GRADIENT, KINK) == 18


def test_dcgan_twenty_steps(tmp_path):
    ours, metrics, reference = compare_dcgan(tmp_path, 32, 1, 20, 16, 8, 20)
    torch.testing.assert_close(ours["metrics"].float(), metrics, rtol=LOSS, atol=LOSS)
    state = {f"generator.{n}": t for n, t in reference.g.state_dict().items()}
    state |= {f"discriminator.{n}": t for n, t in reference.d.state_dict().items()}
    check_final(ours, state, 20 * 2e-4)
    assert ours["counts"].tolist()[2:] == [20 * n for n in ours["counts"].tolist()[:2]]


def test_dcgan_bf16_stays_near(tmp_path):
    """Our bf16 against PyTorch's fp32 on the same data."""
    folder = tmp_path / "bf16"
    folder.mkdir()
    reference = DcganReference(32, 1, 20, 16, lr=2e-4)
    real = torch.rand(20, 8, 1, 32, 32) * 2 - 1
    noise = torch.randn(20, 8, 20, 1, 1)
    ours = probe(
        folder,
        initial(reference.g, "generator.")
        | initial(reference.d, "discriminator.")
        | {"real": real, "noise": noise},
        recipe="dcgan",
        optim="adam",
        lr=2e-4,
        beta1=0.5,
        image_size=32,
        channels=1,
        nz=20,
        ngf=16,
        ndf=16,
        precision="bf16",
    )
    theirs = torch.tensor(
        [reference.step(real[i], noise[i], "fp32") for i in range(20)]
    )
    difference = (ours["metrics"].float() - theirs).abs()
    assert 1e-6 < difference.max() < LOSS_BF16  # close, and really bf16


def vit_reference(size, patch, dim, depth, heads):
    model = Vit(size, patch, dim, depth, heads)
    torch.nn.init.normal_(model.cls_token, std=0.02)
    return model


def vit_adamw(model, lr, decay):
    # timm's rule: biases, norms, the class token and positions do not decay.
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        small = parameter.dim() < 2 or name in ("cls_token", "pos_embed")
        (plain if small else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": decay},
        {"params": plain, "weight_decay": 0},
    ]
    return torch.optim.AdamW(groups, lr, (0.9, 0.999))


def vit_step(model, adamw, images, labels, precision, clip=0, smoothing=0):
    with autocast(precision):
        logits = model(images).float()
    loss = functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    adamw.zero_grad()
    loss.backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    adamw.step()
    right = (logits.argmax(1) == labels).double().mean().item()
    return [loss.item(), right]


def test_vit_base(tmp_path):
    """vit_base_patch32_224: count, timm's names, forward and every gradient."""
    model = vit_reference(224, 32, 768, 12, 12)
    assert count(model) == 87_462_922
    images = torch.randn(1, 2, 3, 224, 224)
    labels = torch.tensor([[3, 7]])
    ours = probe(
        tmp_path,
        initial(model) | {"images": images, "labels": labels},
        recipe="vit",
        optim="adamw",
        lr=1e-3,
        weight_decay=0.05,
        image_size=224,
        patch=32,
        dim=768,
        depth=12,
        heads=12,
    )
    assert ours["counts"].tolist() == [87_462_922, 87_462_922]
    assert {n[5:] for n in ours if n.startswith("grad.")} == set(model.state_dict())
    with torch.no_grad():
        assert error(ours["forward.logits"], model(images[0])) < FORWARD
    adamw = vit_adamw(model, 1e-3, 0.05)
    loss, _ = vit_step(model, adamw, images[0], labels[0], "fp32")
    assert ours["metrics"][0][0].item() == pytest.approx(loss, rel=1e-5)
    assert check_gradients(ours, gradients(model), GRADIENT, GRADIENT) == 152


def compare_vit(folder, precision, clip=0, smoothing=0):
    steps = 20
    model = vit_reference(32, 8, 64, 2, 4)
    images = torch.randn(steps, 8, 3, 32, 32)
    labels = torch.randint(0, 10, (steps, 8))
    ours = probe(
        folder,
        initial(model) | {"images": images, "labels": labels},
        recipe="vit",
        optim="adamw",
        lr=1e-3,
        weight_decay=0.05,
        image_size=32,
        patch=8,
        dim=64,
        depth=2,
        heads=4,
        precision=precision,
        clip=clip,
        label_smoothing=smoothing,
    )
    adamw = vit_adamw(model, 1e-3, 0.05)
    theirs = [
        vit_step(model, adamw, images[i], labels[i], "fp32", clip, smoothing)
        for i in range(steps)
    ]
    return ours, torch.tensor(theirs), model


@pytest.mark.parametrize("clip, smoothing", [(0, 0), (0.5, 0.1)])
def test_vit_twenty_steps(tmp_path, clip, smoothing):
    ours, theirs, model = compare_vit(tmp_path, "fp32", clip, smoothing)
    torch.testing.assert_close(
        ours["metrics"][:, 0].float(), theirs[:, 0].float(), rtol=LOSS, atol=LOSS
    )
    check_final(ours, model.state_dict(), 20 * 1e-3)


def test_vit_bf16_stays_near(tmp_path):
    ours, theirs, _ = compare_vit(tmp_path, "bf16")
    difference = (ours["metrics"][:, 0] - theirs[:, 0]).abs().max()
    assert 1e-6 < difference < LOSS_BF16


class EsrganReference:
    """The usual script, G first, then D: each evaluates D anew. `terms` has
    G's loss, D's loss, content, adversarial, pixel, as ours reports them."""

    def __init__(self, blocks, filters, lr, vgg=None, lambdas=(5e-3, 1e-2)):
        self.g = EsrganGenerator(3, blocks, filters)
        self.d = EsrganDiscriminator(3)
        self.vgg = vgg
        self.lambda_adv, self.lambda_pixel = lambdas
        self.adam_g = torch.optim.Adam(self.g.parameters(), lr)
        self.adam_d = torch.optim.Adam(self.d.parameters(), lr)

    def double(self):
        self.g.double()
        self.d.double()
        if self.vgg:
            self.vgg.double()
        return self

    def step(self, low, high, warming):
        bce = functional.binary_cross_entropy_with_logits
        made = self.g(low)
        pixel = functional.l1_loss(made, high)
        self.adam_g.zero_grad()
        if warming:
            pixel.backward()
            self.adam_g.step()
            self.gradients = gradients(self.g, "generator.")
            return [pixel.item(), 0, 0, 0, pixel.item()]
        on_real, on_fake = self.d(high).detach(), self.d(made)
        one, zero = torch.ones_like(on_real), torch.zeros_like(on_real)
        adversarial = bce(on_fake - on_real.mean(0, keepdim=True), one)
        content = torch.zeros_like(pixel)
        if self.vgg:
            content = functional.l1_loss(self.vgg(made), self.vgg(high).detach())
        loss_g = content + self.lambda_adv * adversarial + self.lambda_pixel * pixel
        loss_g.backward()
        self.adam_g.step()
        self.gradients = gradients(self.g, "generator.")
        self.adam_d.zero_grad()
        on_real, on_fake = self.d(high), self.d(made.detach())
        loss_d = bce(on_real - on_fake.mean(0, keepdim=True), one)
        loss_d = (loss_d + bce(on_fake - on_real.mean(0, keepdim=True), zero)) / 2
        loss_d.backward()
        self.adam_d.step()
        self.gradients |= gradients(self.d, "discriminator.")
        terms = (loss_g, loss_d, content, adversarial, pixel)
        return [term.item() for term in terms]


def make_vgg(folder):
    """VGG19 with random weights that keep the size of its activations."""
    vgg = Vgg19Features()
    for parameter in vgg.parameters():
        if parameter.dim() > 1:
            torch.nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    # A classifier that nobody needs, as torchvision's file has one.
    extra = {"classifier.0.weight": torch.zeros(2, 2)}
    path = folder / "vgg19.safetensors"
    save_file(vgg.state_dict() | extra, path)
    return vgg, path


def compare_esrgan(
    folder, blocks, filters, size, batch, steps, lr, warming=0, vgg=True, precision="fp32"
):
    folder.mkdir(parents=True, exist_ok=True)
    network, path = make_vgg(folder) if vgg else (None, "")
    reference = EsrganReference(blocks, filters, lr, network)
    high = torch.randn(steps, batch, 3, *size)
    low = torch.randn(steps, batch, 3, size[0] // 4, size[1] // 4)
    if precision == "fp64":
        reference.double()
        low, high = low.double(), high.double()
    ours = probe(
        folder,
        initial(reference.g, "generator.")
        | initial(reference.d, "discriminator.")
        | {"low": low, "high": high},
        recipe="esrgan",
        optim="adam",
        precision=precision,
        lr=lr,
        channels=3,
        residual_blocks=blocks,
        filters=filters,
        lambda_adv=5e-3,
        lambda_pixel=1e-2,
        warming=warming,
        vgg=path,
    )
    state = {n: t.clone() for n, t in reference.d.state_dict().items()}
    limit = DOUBLE if precision == "fp64" else FORWARD
    with torch.no_grad():
        assert error(ours["forward.generator"], reference.g(low[0])) < limit
        assert error(ours["forward.discriminator"], reference.d(high[0])) < limit
        if vgg:
            assert error(ours["forward.vgg"], network(high[0])) < limit
    reference.d.load_state_dict(state)
    theirs = [reference.step(low[i], high[i], i < warming) for i in range(steps)]
    return ours, torch.tensor(theirs, dtype=low.dtype), reference


def esrgan_gradients(ours, reference, typical, worst):
    """Biases before a BatchNorm, and D's last one, move nothing: their gradients
    are rounding, here as there. Returns how many others were compared."""
    vanishing = [f"discriminator.model.{i}.bias" for i in range(2, 24, 3)]
    for name in vanishing:
        assert ours[f"grad.{name}"].abs().max() < 1e-4, name
    rest = {n: g for n, g in reference.gradients.items() if n not in vanishing}
    return check_gradients(ours, rest, typical, worst)


def test_esrgan_counts():
    assert count(EsrganGenerator()) == 38_549_123
    assert count(EsrganDiscriminator()) == 4_693_697


def test_esrgan_full_size(tmp_path):
    """The published model with VGG19: counts, forward, each term of the loss;
    each gradient in fp64, where kinks do not matter."""
    ours, metrics, reference = compare_esrgan(
        tmp_path, 23, 64, (32, 16), 2, 1, STILL, precision="fp64"
    )
    assert ours["counts"].tolist() == [38_549_123, 4_693_697] * 2
    torch.testing.assert_close(ours["metrics"], metrics, rtol=DOUBLE, atol=DOUBLE)
    assert esrgan_gradients(ours, reference, DOUBLE, DOUBLE) == 702 + 24


def test_esrgan_small_gradients(tmp_path):
    """fp32, sizes that are not square."""
    ours, metrics, reference = compare_esrgan(
        tmp_path, 1, 16, (32, 48), 2, 1, STILL
    )
    torch.testing.assert_close(ours["metrics"].float(), metrics, rtol=1e-4, atol=1e-5)
    assert esrgan_gradients(ours, reference, KINK, KINK) == 42 + 24


def test_esrgan_warms_up_on_pixels_alone(tmp_path):
    ours, metrics, reference = compare_esrgan(
        tmp_path, 1, 16, (32, 32), 2, 1, STILL, warming=1, vgg=False
    )
    torch.testing.assert_close(ours["metrics"].float(), metrics, rtol=1e-4, atol=1e-5)
    assert check_gradients(ours, reference.gradients, GRADIENT, KINK) == 42
    assert ours["counts"].tolist()[3] == 0  # nothing of D is reduced


@pytest.mark.parametrize("vgg", [False, True])
def test_esrgan_ten_steps(tmp_path, vgg):
    """Three of them warm-up."""
    ours, metrics, reference = compare_esrgan(
        tmp_path, 1, 16, (32, 32), 4, 10, 2e-4, warming=3, vgg=vgg
    )
    torch.testing.assert_close(ours["metrics"].float(), metrics, rtol=1e-2, atol=1e-2)
    moved = {n: t for n, t in ours.items() if n.startswith("final.generator.")}
    for name, tensor in reference.g.state_dict().items():
        apart = (moved[f"final.generator.{name}"] - tensor).abs().mean().item()
        assert apart < 0.1 * 10 * 2e-4, f"{name}: {apart:.1e}"
    # D sees each batch once, where the script looks twice at it.
    assert ours["final.discriminator.model.3.num_batches_tracked"].item() == 14


def test_esrgan_bf16_stays_near(tmp_path):
    folder = tmp_path / "bf16"
    torch.manual_seed(0)
    _, theirs, _ = compare_esrgan(tmp_path / "fp32", 1, 16, (32, 32), 2, 5, 2e-4)
    torch.manual_seed(0)
    folder.mkdir()
    network, path = make_vgg(folder)
    reference = EsrganReference(1, 16, 2e-4, network)
    high = torch.randn(5, 2, 3, 32, 32)
    low = torch.randn(5, 2, 3, 8, 8)
    ours = probe(
        folder,
        initial(reference.g, "generator.")
        | initial(reference.d, "discriminator.")
        | {"low": low, "high": high},
        recipe="esrgan",
        optim="adam",
        precision="bf16",
        lr=2e-4,
        channels=3,
        residual_blocks=1,
        filters=16,
        lambda_adv=5e-3,
        lambda_pixel=1e-2,
        warming=0,
        vgg=path,
    )
    difference = (ours["metrics"].float() - theirs).abs()
    assert 1e-6 < difference.max() < LOSS_BF16
