;;; super-save.el --- super-save: saved at each change of buffers  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: super-save

(require 'super-save)
(setq super-save-auto-save-when-idle t
      super-save-idle-duration 1)
(super-save-mode 1)

;;; super-save.el ends here
