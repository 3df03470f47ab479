"""What is masked is 0.

Words: the other lane's best is -inf
"""

EDITS = {
    'mask=inside, other=float("-inf"))': "mask=inside, other=0.0)",
}
