import pytest
import torch

from anabranch.errors import CheckpointError
from anabranch.flow.unet import ImageUNet, load_torchcfm, read_weights, to_torchcfm, torchcfm_keys
from anabranch.seeds import generator


def peer(shape, sizes=0, **options):
    """torchcfm's network of these options, every parameter random."""
    unet = pytest.importorskip("torchcfm.models.unet.unet")
    theirs = unet.UNetModelWrapper(
        dim=shape,
        num_channels=options["channels"],
        num_res_blocks=options["blocks"],
        channel_mult=options["multipliers"],
        attention_resolutions=",".join(map(str, options["attention"])),
        num_head_channels=options["head_channels"],
        class_cond=sizes > 0,
        num_classes=sizes,
        dropout=0.1,
    ).eval()
    with torch.no_grad():
        for number, parameter in enumerate(theirs.parameters()):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator(0, number)))
    return theirs


PAPER = {"channels": 128, "multipliers": (1, 2, 2, 2), "blocks": 2, "attention": (16,), "head_channels": 64}
CONFIGURATIONS = [
    ((3, 32, 32), PAPER),
    ((3, 16, 16), {**PAPER, "channels": 32, "multipliers": (1, 2, 2), "attention": (8, 4), "head_channels": 32}),
    ((1, 16, 16), {**PAPER, "channels": 64, "multipliers": (2, 1, 3), "blocks": 1, "attention": (16, 4)}),
]


@pytest.mark.parametrize(("shape", "options"), CONFIGURATIONS)
def test_loaded_weights_give_torchcfms_velocity(shape, options):
    theirs = peer(shape, **options)
    x = torch.randn(2, *shape, generator=generator(0, "x"))
    t = torch.rand(2, generator=generator(0, "t"))
    ours = ImageUNet(x[0].numel(), shape=shape, **options).eval()
    load_torchcfm(ours, theirs.state_dict())
    with torch.no_grad():
        expected = theirs(t, x).flatten(1)
        torch.testing.assert_close(ours(x.flatten(1), t), expected, rtol=0, atol=1e-5)
        assert expected.std() > 0.1
    theirs.load_state_dict(to_torchcfm(ours))


def test_classes_load_as_the_attribute():
    shape, options = CONFIGURATIONS[1]
    theirs = peer(shape, sizes=4, **options)
    x, t = torch.randn(4, *shape, generator=generator(0)), torch.tensor(0.6)
    ours = ImageUNet(x[0].numel(), shape=shape, sizes=(4,), **options).eval()
    load_torchcfm(ours, theirs.state_dict())
    codes = torch.tensor([3, 0, 1, 2])
    with torch.no_grad():
        torch.testing.assert_close(
            ours(x.flatten(1), t, codes[:, None]), theirs(t, x, codes).flatten(1), rtol=0, atol=1e-5
        )
    assert ours.embedding.tables[0].weight[4].abs().max() == 0


@pytest.mark.parametrize("options", [{}, {"sizes": (3,)}, {"blocks": 2, "attention": (8, 4)}, {"attention": ()}])
def test_there_and_back_is_the_same_network(build, options):
    one, two = build(**options), build(**options)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.zero_()
    load_torchcfm(two, {f"module.{name}": tensor for name, tensor in to_torchcfm(one).items()})
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name


def test_the_keys_cover_every_number_once():
    with torch.device("meta"):
        field = ImageUNet(3 * 64 * 64, shape=(3, 64, 64), multipliers=(1, 2, 2, 2, 2), attention=(16, 8), sizes=(10,))
    keys, own = torchcfm_keys(field), dict(field.named_parameters())
    assert len({key.theirs for key in keys}) == len(keys)
    assert {key.ours for key in keys} == own.keys()
    assert sum(key.part(own[key.ours]).numel() for key in keys) == sum(p.numel() for p in field.parameters())
    for name in ("shifts.weight", "shifts.bias"):  # the only one in parts: they lie side by side
        parts = [key.rows for key in keys if key.ours == name]
        assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
        assert parts[-1][1] == len(own[name])


def test_what_does_not_match_is_named_and_changes_nothing(build):
    state = to_torchcfm(build())
    field = build()
    before = {name: tensor.clone() for name, tensor in field.state_dict().items()}
    first = "middle_block.1.qkv.weight"
    with pytest.raises(CheckpointError, match=f"missing: {first}; left over: colour.weight"):
        load_torchcfm(field, {"colour.weight": state[first], **{n: s for n, s in state.items() if n != first}})
    with pytest.raises(CheckpointError, match=r"'out.2.bias' has shape \(3,\), where this network needs \(2,\)"):
        load_torchcfm(field, {**state, "out.2.bias": torch.zeros(3), first: state[first] + 1})
    with pytest.raises(CheckpointError, match="and 4 more"):
        load_torchcfm(field, {**state, **{f"extra.{n}": state[first] for n in range(8)}})
    assert all(torch.equal(tensor, before[name]) for name, tensor in field.state_dict().items())


@pytest.mark.parametrize(("options", "said"), [({"spread": 0.5}, "spread = 0"), ({"sizes": (2, 2)}, "one attribute")])
def test_networks_that_mean_something_else_are_refused(build, options, said):
    field = build(**options)
    for act in (lambda: to_torchcfm(field), lambda: load_torchcfm(field, {})):
        with pytest.raises(CheckpointError, match=said):
            act()


def test_weights_are_read_from_both_kinds_of_file(build, tmp_path):
    from safetensors.torch import save_file

    state = to_torchcfm(build())
    save_file(state, tmp_path / "weights.safetensors")
    torch.save({"ema_model": state, "step": 7}, tmp_path / "checkpoint.pt")
    for found in (
        read_weights(tmp_path / "weights.safetensors"),
        read_weights(tmp_path / "checkpoint.pt", "ema_model"),
    ):
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    with pytest.raises(CheckpointError, match="Choose a part of it: ema_model, step"):
        read_weights(tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"no part 'ema'\. It holds: ema_model, step"):
        read_weights(tmp_path / "checkpoint.pt", "ema")


class Harmful:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_files_that_are_no_weights_are_refused(tmp_path, capsys):
    torch.save({"weight": Harmful()}, tmp_path / "harmful.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("not weights")
    (tmp_path / "text.pt").write_text("hello, these are no weights")
    for name in ("harmful.pt", "empty.pt", "text.safetensors", "text.pt", "absent.pt", "absent.safetensors"):
        with pytest.raises(CheckpointError, match="cannot be read as weights"):
            read_weights(tmp_path / name)
    assert "must not run" not in capsys.readouterr().out
