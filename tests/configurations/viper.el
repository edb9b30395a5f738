;;; viper.el --- Viper  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq viper-mode t
      viper-inhibit-startup-message t
      viper-expert-level 5)
(require 'viper)

;;; viper.el ends here
