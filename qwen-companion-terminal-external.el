;;; qwen-companion-terminal-external.el --- CLIs in a terminal outside of Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A terminal program of the desktop, by a template of its command.  Reviews
;; and all that goes over the companion work there as in a terminal of Emacs;
;; what needs its buffer does not: going to it, prompts.

;;; Code:

(require 'qwen-companion-terminal)

(defcustom qwen-companion-terminal-external-command '("xterm" "-e" "%c")
  "The program and arguments that open a terminal of the desktop.
The element \"%c\" stands for the program and arguments of the CLI, and
%d in any element for the directory, in which it is also started."
  :group 'qwen-companion
  :type '(repeat :tag "Program and arguments" string))

(cl-defmethod qwen-companion-terminal-start ((_kind (eql external)) buffer command)
  "Run COMMAND in a terminal of the desktop; BUFFER is not needed."
  (let* ((directory (directory-file-name default-directory))
         (words (cl-loop for word in qwen-companion-terminal-external-command
                         if (equal word "%c") append command
                         else collect (string-replace "%d" directory word))))
    (unless (executable-find (car words))
      (user-error "No program `%s' found; customize `qwen-companion-terminal-external-command'"
                  (car words)))
    (kill-buffer buffer)
    (make-process :name (format "qwen terminal: %s" (file-name-nondirectory directory))
                  :command words :connection-type 'pipe :noquery t)
    (message "The CLI starts in %s" (car words))))

(provide 'qwen-companion-terminal-external)
;;; qwen-companion-terminal-external.el ends here
