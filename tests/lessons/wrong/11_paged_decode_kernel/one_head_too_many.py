"""The last member of a group has its number.

Words: number below GROUP
"""

EDITS = {
    "members < GROUP": "members <= GROUP",
}
