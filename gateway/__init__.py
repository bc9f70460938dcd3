IS_WALGATE = True  # what walgate.py looks for: another distribution may have a package of this name
