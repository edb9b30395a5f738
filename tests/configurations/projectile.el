;;; projectile.el --- Projectile  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: projectile

(require 'projectile)
(projectile-mode 1)

;;; projectile.el ends here
