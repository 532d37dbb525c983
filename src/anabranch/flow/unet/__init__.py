"""Networks for images at the papers' size: the UNet of the image experiments, torchcfm's weights for it, a potential.

```python
field = network("unet", dimension=3072, seed=0, shape=(3, 32, 32))      # 35 746 307 parameters
load_torchcfm(field, read_weights("checkpoint.pt", part="ema_model"))
potential = network("cnn-potential", dimension=3072, seed=0, shape=(3, 32, 32))
operations = flops(field, batch=128)
```
"""

from anabranch.flow.unet._flops import flops
from anabranch.flow.unet._keys import Key, torchcfm_keys
from anabranch.flow.unet._potential import ImagePotential
from anabranch.flow.unet._spectral import spectral_norm
from anabranch.flow.unet._torchcfm import load_torchcfm, read_weights, to_torchcfm
from anabranch.flow.unet._unet import ImageUNet

__all__ = [
    "ImagePotential",
    "ImageUNet",
    "Key",
    "flops",
    "load_torchcfm",
    "read_weights",
    "spectral_norm",
    "to_torchcfm",
    "torchcfm_keys",
]
