import torch

from anabranch.flow.conditioning._blocks import Ascent, Attention, Descent
from anabranch.seeds import generator


def randomised(module):
    random = generator(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=random))
    return module.double()


def test_attention_is_the_softmax_of_products_among_places():
    attention = randomised(Attention(128))  # two heads of 64
    h = torch.randn(2, 128, 3, 2, generator=generator(1)).double()
    normed = attention.norm(h)
    expected = h.clone()
    for sample in range(2):
        places = [normed[sample, :, row, column] for row in range(3) for column in range(2)]
        query, key, value = attention.queries_keys_values(torch.stack(places)).split(128, dim=1)
        heads = []
        for part in (slice(0, 64), slice(64, 128)):
            weight = (query[:, part] @ key[:, part].T / 8).softmax(dim=1)
            heads.append(weight @ value[:, part])
        mixed = attention.output(torch.cat(heads, dim=1))
        for place in range(6):
            expected[sample, :, place // 2, place % 2] += mixed[place]
    assert attention.heads == 2
    torch.testing.assert_close(attention(h), expected)


def test_levels_halve_rounded_up_and_return_to_the_size_kept():
    s = torch.randn(1, 16, generator=generator(2)).double()
    kept = torch.randn(1, 8, 7, 5, generator=generator(3)).double()
    below = randomised(Descent(8, 16, 16, blocks=2, dropout=0.0, top=False))(kept, s)
    assert below.shape == (1, 16, 4, 3)
    assert randomised(Ascent(16, 8, 16, blocks=2, dropout=0.0, bottom=False))(below, kept, s).shape == kept.shape
    top = randomised(Descent(8, 16, 16, blocks=1, dropout=0.0, top=True))
    assert top(kept, s).shape == (1, 16, 7, 5)
