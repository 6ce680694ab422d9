"""The scaling policies that come with Sublet, one in a file. Importing this room registers them.

Those of one's own are registered in the same way, by the decorator `scaling_policy`.
"""

from sublet.scheduler.scaling.policies import balance as balance
from sublet.scheduler.scaling.policies import colocate as colocate
from sublet.scheduler.scaling.policies import even as even
from sublet.scheduler.scaling.policies import fixed as fixed
from sublet.scheduler.scaling.policies import henge as henge
from sublet.scheduler.scaling.policies import laxity as laxity
from sublet.scheduler.scaling.policies import predictive as predictive
from sublet.scheduler.scaling.policies import reactive as reactive
from sublet.scheduler.scaling.policies import sponge as sponge
from sublet.scheduler.scaling.policies import stela as stela
