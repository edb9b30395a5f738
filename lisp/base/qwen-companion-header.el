;;; qwen-companion-header.el --- Header lines that fit, and their keys  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A header line says first what the buffer shows and what to beware of, then
;; which keys there are.  Where a window is too narrow, the least important is
;; left out.  A warning never is, nor are the keys that answer: beside them,
;; warnings lose their ends, which are in their help.  A key can be clicked, and
;; is the one that works in the buffer, whatever other keymaps are active there.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-header--key-weight 10
  "Least weight of a key that may be left out before texts are shortened.")

(defconst qwen-companion-header--name-width 8
  "Columns that the end of a name keeps.")

(defconst qwen-companion-header--warning-width 8
  "Columns that the beginning of a warning keeps.")

(defun qwen-companion-header--cut-warnings (parts excess)
  "Return PARTS, (WEIGHT . STRING), with the longest warnings cut off.
These are the parts without a WEIGHT.  They lose EXCESS columns, but each
keeps its beginning, and its help has all of it."
  (cl-flet ((width (part) (string-width (cdr part))))
    (let* ((warnings (cl-remove-if #'car parts))
           (room (- (apply #'+ (mapcar #'width warnings)) excess))
           (columns (apply #'max 0 (mapcar #'width warnings))))
      (while (and (> columns qwen-companion-header--warning-width)
                  (> (cl-loop for part in warnings sum (min columns (width part))) room))
        (cl-decf columns))
      (mapcar (lambda (part)
                (if (or (car part) (<= (width part) columns))
                    part
                  (cons nil (propertize
                             (truncate-string-to-width (cdr part) columns nil nil "…")
                             'help-echo (substring-no-properties (cdr part))))))
              parts))))

(defun qwen-companion-header-line (name parts)
  "Return a header line, escaped for the mode line, that fits its window.
It begins with NAME.  PARTS are (WEIGHT . TEXT) in the order in which
they are shown; a TEXT that is nil or empty is none, and one that is
\(LONG . SHORT) is LONG where there is room.  While there is none, leave
out the part with the greatest WEIGHT, of several the last.  One of
WEIGHT 0 stays until NAME has lost its beginning, a negative one
longest, and one whose WEIGHT is nil always: it is cut off first.  A
buffer that is not in the selected window has all parts."
  (let* ((parts (cl-remove-if (lambda (part) (member (cdr part) '(nil ""))) parts))
         (width (and (eq (window-buffer) (current-buffer))
                     (- (window-width) 2)))
         (short nil)
         (text (lambda (part)
                 (pcase (cdr part)
                   (`(,long . ,brief) (if short brief long))
                   (text text))))
         (left (lambda ()
                 (- width (cl-loop for part in parts
                                   sum (+ 2 (string-width (funcall text part)))))))
         (fit (lambda (columns least)
                (while (when-let* (((> columns (funcall left)))
                                   (weight (apply #'max (or (delq nil (mapcar #'car parts))
                                                            '(-2))))
                                   ((>= weight least)))
                         (setq parts (delq (cl-find weight parts :key #'car :from-end t)
                                           parts)))))))
    (when width
      (funcall fit (string-width name) qwen-companion-header--key-weight)
      (setq short (> (string-width name) (funcall left)))
      (funcall fit (string-width name) 1)
      (funcall fit (min (string-width name) qwen-companion-header--name-width) 0)
      (when (< (funcall left) (min (string-width name) qwen-companion-header--name-width))
        ;; The mode line has the name.
        (setq name ""
              parts (mapcar (lambda (part) (cons (car part) (funcall text part))) parts)
              parts (qwen-companion-header--cut-warnings parts (- (funcall left))))
        (funcall fit 0 -1))
      (let ((room (max qwen-companion-header--name-width (funcall left))))
        (when (> (string-width name) room)
          (let ((width (string-width name)))
            (setq name (concat "…" (truncate-string-to-width name width (- width (1- room)))))))))
    (qwen-companion-untrusted-mode-line
     (concat " " name
             (mapconcat (lambda (part) (concat "  " (funcall text part))) parts "")))))

;;; Keys

(defun qwen-companion-header-key (command label &optional other)
  "Return the key of COMMAND in the current buffer and LABEL, to be clicked.
OTHER is a second command whose key is shown as well, as in \"n/p\"."
  (let ((map (make-sparse-keymap))
        (push (lambda (event)
                (interactive "e")
                (select-window (posn-window (event-start event)))
                (call-interactively command))))
    (define-key map [header-line mouse-1] push)
    (define-key map [header-line mouse-2] push)
    (propertize
     (concat (substitute-command-keys (format "\\[%s]" command))
             (when other
               (concat "/" (substitute-command-keys (format "\\[%s]" other))))
             " " label)
     'mouse-face 'mode-line-highlight
     'help-echo (format "mouse-1: %s" (qwen-companion-header--first-line command))
     'keymap map)))

(defun qwen-companion-header--first-line (command)
  "Return the first line of the documentation of COMMAND."
  (car (split-string (or (documentation command) "") "\n")))

(defvar-local qwen-companion-header--keys nil
  "The keys shown in this buffer: ((KEYS . STATE) . PARTS).
STATE is Evil's, on which the active keys depend.")

(defun qwen-companion-header-keys (keys)
  "Return KEYS as parts of `qwen-companion-header-line'.
KEYS are (COMMAND LABEL [OTHER KEEP]), the most important first, see
`qwen-companion-header-key'.  One with KEEP non-nil stays longest, then
that of `qwen-companion-header-help', which tells all others."
  (let ((for (cons keys (bound-and-true-p evil-state))))
    (unless (equal for (car qwen-companion-header--keys))
      (setq qwen-companion-header--keys
            (cons for
                  (cl-loop for key in keys
                           for weight from 11
                           collect (cons (cond ((nth 3 key) -1)
                                               ((eq (car key) 'qwen-companion-header-help)
                                                qwen-companion-header--key-weight)
                                               (t weight))
                                         (apply #'qwen-companion-header-key
                                                (seq-take key 3)))))))
    (cdr qwen-companion-header--keys)))

;;; Under other keymaps

(autoload 'qwen-companion-evil-keep-keys "qwen-companion-evil")
(autoload 'qwen-companion-meow-keep-keys "qwen-companion-meow")

(defun qwen-companion-header-keep-keys ()
  "Have the keys of the current major mode work with Evil, Meow and God mode too.
Call this in the mode's body.  God mode leaves a mode alone if its property
`mode-class' is `special'.  Meow has few keys of its own then, and the
header line shows those that it leaves."
  (put major-mode 'mode-class 'special)
  (when (featurep 'evil)
    (qwen-companion-evil-keep-keys (qwen-companion-header--map)))
  (when (featurep 'meow)
    (qwen-companion-meow-keep-keys)))

(defun qwen-companion-header--map ()
  "Return the keymap of the current major mode, or signal a `user-error'."
  (let ((map (intern (format "%s-map" major-mode))))
    (if (boundp map)
        (symbol-value map)
      (user-error "This buffer has no keys of its own"))))

;;; Clicks and context menus

(defun qwen-companion-header-click (event)
  "Do as RET does at the place of EVENT, a click."
  (interactive "e")
  (mouse-set-point event)
  (call-interactively (key-binding (kbd "RET"))))

(defun qwen-companion-header-set-up-mode ()
  "Keep the keys of the current major mode, and have a menu at a click.
Call this in the mode's body.  `context-menu-mode' offers the commands for
the line that is clicked: the mode's menu in the menu bar is in the
context menu anyway, and its commands act at point."
  (qwen-companion-header-keep-keys)
  (add-hook 'context-menu-functions #'qwen-companion-header--go-to-click -90 t))

(defun qwen-companion-header--go-to-click (menu click)
  "Go to the place of CLICK, except with an active region; return MENU."
  (when (and (mouse-event-p click)
             (not (posn-area (event-start click)))
             (not (use-region-p)))
    (mouse-set-point click))
  menu)

;;; All keys

(defun qwen-companion-header--commands (map)
  "Return the commands that MAP binds itself, in the order of definition."
  (let (commands)
    (letrec ((add (lambda (event binding)
                    (cond ((memq event '(menu-bar override-state)))
                          ((keymapp binding) (map-keymap-internal add binding))
                          ((commandp binding) (push binding commands))))))
      (map-keymap-internal add map))
    (delete-dups commands)))

(defconst qwen-companion-header--keys-width 15
  "Width of the column of keys in the help of `qwen-companion-header-help'.")

(defun qwen-companion-header-help ()
  "Show the keys of this buffer with a description of each."
  (interactive)
  (let* ((map (qwen-companion-header--map))
         (lines (cl-loop for command in (qwen-companion-header--commands map)
                         for keys = (mapconcat
                                     #'key-description
                                     (cl-remove-if (lambda (event)
                                                     (or (eq event 'menu-bar)
                                                         (mouse-event-p event)))
                                                   (where-is-internal command)
                                                   :key (lambda (key) (aref key 0)))
                                     ", ")
                         unless (string-empty-p keys)
                         collect (format "%s  %s\n"
                                         (string-pad keys (- qwen-companion-header--keys-width 2))
                                         (qwen-companion-header--first-line command)))))
    (with-help-window (help-buffer)
      (mapc #'princ lines)
      (princ (substitute-command-keys "\n\\[describe-mode] describes the mode with all keys.
Info node `(qwen-companion)Top', or \\[qwen-companion-manual], is the manual.\n")))
    (with-current-buffer (help-buffer)
      (setq-local truncate-partial-width-windows nil
                  word-wrap t
                  wrap-prefix (make-string qwen-companion-header--keys-width ?\s)))))

(provide 'qwen-companion-header)
;;; qwen-companion-header.el ends here
