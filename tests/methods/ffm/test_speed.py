"""Switches for speed: compiled networks, passes of a part of the batch, settings of torch that are put back."""

import logging
from dataclasses import replace

import pytest
import torch

from anabranch.data import Pixels
from anabranch.errors import UsageError
from anabranch.federation import Federation, Silo
from anabranch.flow import _compiled as compiled
from anabranch.flow import integrate
from anabranch.methods.ffm import FlowMatching, FlowServer, FlowSettings, ImageSettings, half_of, preset
from anabranch.methods.ffm import _speed as speed
from anabranch.methods.ffm._half import flow_network, gradients
from anabranch.seeds import generator

GPU, CPU = torch.device("cuda"), torch.device("cpu")
IMAGES = ImageSettings(shape=(1, 4, 4), channels=4, multipliers=(1, 2), blocks=1, attention=(), dropout=0.0)


def settings_of(method="vanilla", dropout=0.0, **flow):
    base = preset(method)
    options = {"network": "unet", "precision": "float64", "rounds": 3, "batch": 8, **flow}
    return replace(base, flow=replace(base.flow, **options), images=replace(IMAGES, dropout=dropout))


def server_of(settings, fused=True):
    silos = []
    for number in range(2):
        x = torch.randint(256, (20, 16), generator=generator(number), dtype=torch.uint8)
        silos.append(Silo(f"s{number}", Pixels(x, torch.zeros(20).long(), (1, 4, 4)), secret=number))
    federation = Federation(silos, fused=fused)
    federation.open("speed", 0)
    return FlowServer(settings, federation), silos


def trained(settings, fused=True):
    server, _ = server_of(settings, fused)
    for _ in server.run():
        pass
    return server


def flat(server):
    return torch.cat([tensor.flatten() for tensor in server.parameters.values()])


@pytest.fixture
def quick(monkeypatch):
    """The compiler's tracing and differentiation without its last step, which takes minutes."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters["stats"]


@pytest.fixture
def auto(quick, monkeypatch):
    """With "auto" networks are compiled here, too, once ten rows are sampled."""
    monkeypatch.setattr(speed, "compiles", lambda settings, device: True)
    monkeypatch.setattr("anabranch.methods.ffm._velocity.AUTO_ROWS", 10)
    return quick


class TestCompiling:
    def test_training_and_sampling_are_the_same_with_it(self, quick):
        quicker, plain = (trained(settings_of(dropout=0.2, compile=choice)) for choice in (True, False))
        torch.testing.assert_close(flat(quicker), flat(plain), rtol=1e-9, atol=1e-9)
        x = torch.randn(3, 16, generator=generator(1))
        values = [server.velocity()(x, torch.tensor(0.3)) for server in (quicker, plain)]
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
        assert quick["unique_graphs"] == 2  # one that trains and one that samples: nothing was traced again

    def test_other_parameters_are_seen_without_compiling_again(self, quick):
        server, silos = server_of(settings_of(compile=True), fused=False)
        rounds = server.run()
        before = next(rounds).metrics["loss"]
        after = next(rounds).metrics["loss"]
        assert float(before) != float(after) and quick["unique_graphs"] == 1
        fields = [half_of(silo).field for silo in silos]
        assert all(field._compiled_call_impl is not None for field in fields)

    def test_half_precision_goes_through_it(self, quick):
        field = flow_network(settings_of(precision="float32"), 16)
        torch.nn.init.normal_(field.head.weight, generator=generator(2))
        x, t = torch.randn(5, 16, generator=generator(3)), torch.rand(5, generator=generator(4))
        exact = gradients(field(x, t).square().mean(), field)
        compiled.compile_in_place(field)
        for _ in range(2):
            half = {name: p.to(torch.bfloat16) for name, p in field.named_parameters()}
            loss = torch.func.functional_call(field, half, (x, t)).square().mean()
            found = gradients(loss, field)
        assert quick["unique_graphs"] == 1
        largest = max(float(slope.abs().max()) for slope in exact.values())
        assert all((found[name] - slope).abs().max() < 0.05 * largest for name, slope in exact.items())

    def test_where_it_fails_the_network_is_computed_without(self, monkeypatch, caplog):
        torch._dynamo.reset()

        def broken(graph, inputs):
            raise RuntimeError("no compiler here")

        monkeypatch.setattr(compiled, "BACKEND", broken)
        with caplog.at_level(logging.WARNING):
            server = trained(settings_of(compile=True))
            velocity = server.velocity()
            for _ in range(2):
                velocity(torch.zeros(2, 16), torch.tensor(0.5))
        said = [record.message for record in caplog.records if "could not be compiled" in record.message]
        assert len(said) == 2  # of the network that trains, and of the one that samples
        assert all("no compiler here" in sentence and len(sentence) < 400 for sentence in said)
        assert torch.equal(flat(server), flat(trained(settings_of(compile=False))))

    @pytest.mark.parametrize(
        ("choice", "device", "network", "wanted"),
        [
            (True, CPU, "unet", True),
            (False, GPU, "unet", False),
            ("auto", CPU, "unet", False),
            ("auto", GPU, "unet", True),
            ("auto", GPU, "mlp", False),
        ],
    )
    def test_what_auto_means(self, monkeypatch, choice, device, network, wanted):
        monkeypatch.setattr(speed, "find_spec", lambda name: object())
        assert speed.compiles(settings_of(compile=choice, network=network), device) is wanted

    def test_auto_needs_triton(self, monkeypatch):
        monkeypatch.setattr(speed, "find_spec", lambda name: None)
        assert not speed.compiles(settings_of(), GPU)

    def test_a_few_samples_do_not_wait_for_it(self, auto):
        server, _ = server_of(settings_of())
        velocity = server.velocity()
        for _ in range(2):
            velocity(torch.zeros(5, 16), torch.tensor(0.5))
        assert server.network._compiled_call_impl is None
        velocity(torch.zeros(5, 16), torch.tensor(0.5))
        assert server.network._compiled_call_impl is not None

    @pytest.mark.parametrize(("evaluations", "wanted"), [(9, False), (10, True)])
    def test_who_says_what_is_to_come_does_not_wait_for_it_later(self, auto, evaluations, wanted):
        velocity = server_of(settings_of())[0].velocity()
        velocity.prepare(torch.zeros(5, 16), evaluations)
        assert velocity.compiled is wanted and auto["unique_graphs"] == wanted

    def test_any_number_of_points_goes_through_one_compiled_pass(self, quick):
        """Also those of another server's flow, with times of their own, and in gradients' way or not."""
        server, other = (trained(settings_of(compile=True)) for _ in range(2))
        plain = trained(settings_of(compile=False)).velocity()
        assert quick["unique_graphs"] == 1  # both were trained by it
        x, t = torch.randn(20, 16, generator=generator(1)), torch.tensor(0.3)
        for velocity in (server.velocity(), other.velocity()):
            velocity.prepare(x[:8], 0)
            for count in (8, 3, 20, 16, 1, 0):
                torch.testing.assert_close(velocity(x[:count], t), plain(x[:count], t), rtol=1e-5, atol=1e-6)
        for solver, steps in (("euler", 3), ("heun", 4), ("dopri5", None)):
            integrate(velocity, x, steps, solver)
        assert quick["unique_graphs"] == 2  # and another one samples
        times = torch.rand(20, generator=generator(2))
        torch.testing.assert_close(velocity(x, times), plain(x, times), rtol=1e-5, atol=1e-6)
        assert quick["unique_graphs"] == 3

    def test_unprepared_passes_grow_with_what_comes(self, quick):
        velocity = server_of(settings_of(compile=True))[0].velocity()
        rows = []
        for count in (3, 5, 6, 11, 4):
            velocity(torch.zeros(count, 16), torch.tensor(0.5))
            rows.append(velocity.rows)
        assert rows == [3, 3, 6, 6, 6] and quick["unique_graphs"] == 2

    def test_the_size_of_passes_stays_with_the_network(self, quick):
        """Who comes after one that had said what is to come fills up its few points."""
        server, _ = server_of(settings_of(compile=True))
        server.velocity().prepare(torch.zeros(8, 16), 0)
        later = server.velocity()
        assert later(torch.zeros(3, 16), torch.tensor(0.5)).shape == (3, 16) and later.rows == 8
        assert quick["unique_graphs"] == 1
        assert server_of(settings_of(compile=True))[0].velocity().rows == 0

    def test_a_second_size_is_compiled_for_that_size(self, quick):
        """Were it taken for a sign that there may be any, the compiler would not choose how maps lie in memory."""
        field = flow_network(settings_of(), 16)
        compiled.compile_in_place(field)
        x = torch.zeros(7, 16, dtype=torch.float64)
        for rows in (5, 6, 7):
            field(x[:rows], x[:rows, 0])
        assert quick["unique_graphs"] == 3

    @pytest.mark.parametrize("choice", [True, False, "auto"])
    def test_the_choice_travels(self, choice):
        settings = settings_of(compile=choice)
        assert FlowMatching.from_json(settings.to_json()) == settings

    @pytest.mark.parametrize("options", [{"compile": "yes"}, {"compile": 1.5}, {"passes": 0}])
    def test_other_choices_are_refused(self, options):
        with pytest.raises(UsageError, match=rf"flow.{next(iter(options))} is"):
            FlowSettings(**options)


class TestPasses:
    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("local", [0, 2])
    def test_the_gradient_is_the_same(self, fused, local):
        whole, parts = (flat(trained(settings_of(passes=passes, local_steps=local), fused)) for passes in (1, 3))
        torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-10)

    def test_so_many_passes_are_made(self, monkeypatch):
        server, silos = server_of(settings_of(passes=3, rounds=1))
        sizes = []
        kind = type(half_of(silos[0]))
        velocity = kind.velocity
        monkeypatch.setattr(kind, "velocity", lambda self, x, t: (sizes.append(len(x)), velocity(self, x, t))[1])
        list(server.run())
        assert sizes == [6, 6, 4]  # two silos' batches of eight


class TestTuned:
    def values(self):
        return torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()

    def test_a_gpu_tries_what_is_fastest_and_all_is_put_back(self):
        before = self.values()
        with pytest.raises(ZeroDivisionError), speed.tuned(settings_of(precision="bfloat16"), GPU):
            assert self.values() == (True, before[1])
            raise ZeroDivisionError
        assert self.values() == before

    def test_products_are_rounded_where_asked_for(self):
        before = self.values()
        with speed.tuned(settings_of(precision="tf32"), GPU):
            assert self.values() == (True, "high")
        assert self.values() == before

    def test_exact_products_are_those_of_convolutions_too(self):
        before, convolutions = self.values(), torch.backends.cudnn.conv.fp32_precision
        with speed.tuned(settings_of(precision="tf32"), GPU, exact=True):
            assert self.values() == (True, "highest") and torch.backends.cudnn.conv.fp32_precision == "ieee"
        assert self.values() == before and torch.backends.cudnn.conv.fp32_precision == convolutions

    def test_what_was_compiled_before_is_found_on_disk_after(self, monkeypatch):
        """The switch is part of its name there, and must be spelled alike."""
        monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: None)
        products, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
        products.fp32_precision = "none"  # as it is in a program that has just begun
        try:
            speed.compile_flow(torch.nn.Identity(), settings_of(compile=True), GPU)
            spelled = products.fp32_precision
            with speed.tuned(settings_of(precision="tf32"), GPU):
                assert products.fp32_precision != spelled
            assert products.fp32_precision == spelled
        finally:
            products.fp32_precision = before

    @pytest.mark.parametrize(("device", "network"), [(CPU, "unet"), (GPU, "mlp")])
    def test_nothing_changes_elsewhere(self, device, network):
        before = self.values()
        with speed.tuned(settings_of(network=network, precision="tf32"), device):
            assert self.values() == before

    def test_who_wants_the_same_bits_gets_them(self, monkeypatch):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        with speed.tuned(settings_of(), GPU):
            assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(("device", "wanted"), [(CPU, {}), (GPU, {"channels_last": True})])
def test_colours_of_a_place_lie_together_on_a_gpu(monkeypatch, device, wanted):
    given = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: given.append(options))
    settings = settings_of(compile=True)
    assert speed.layout(settings, device) == wanted and speed.layout(settings_of(network="mlp"), device) == {}
    speed.compile_flow(torch.nn.Identity(), settings, device)
    assert given == [{"backend": "inductor", "dynamic": False, "options": None}]


def test_only_inductor_is_told_how_maps_lie(monkeypatch):
    given = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: given.append(options))
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    compiled.compile_in_place(torch.nn.Linear(2, 2), channels_last=True)
    assert given == [{"backend": "aot_eager", "dynamic": False, "options": None}]
