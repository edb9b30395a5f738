;;; qwen-companion-header.el --- Header lines that fit, and their keys  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A header line says first what the buffer shows and what to beware of, then
;; which keys there are.  Where a window is too narrow, the least important is
;; left out.  A warning never is, nor are the keys that answer: beside them,
;; warnings lose their ends, which are in their help.  A key can be clicked, and
;; is the one that works in the buffer, whatever other keymaps are active there.
;;
;; Each mode has one table of its keys, which its keymap, its menu and its
;; header line are made of.

;;; Code:

(require 'cl-lib)
(require 'easymenu)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-untrusted)

(defvar tabulated-list-format)
(defvar tabulated-list-padding)
(defvar tabulated-list-sort-key)
(defvar tabulated-list-use-header-line)
(declare-function tabulated-list-init-header "tabulated-list" ())
(declare-function tabulated-list-print "tabulated-list" (&optional remember-pos update))

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

;;; One table for each mode

(defmacro qwen-companion-header-define-keys (mode title &rest rows)
  "Define the keymap of MODE, its menu TITLE, and the keys in its header.
Each of ROWS is (KEYS COMMAND ITEM [LABEL] [PROPERTY VALUE]...):
KEYS is a key as for `qwen-companion-buffers-keymap', a list of these, of
which the last one is shown, or nil; COMMAND is a command, or a form for
the menu alone.  ITEM is its name in the menu and LABEL its name in the
header line, each nil for none.  While the form that is the value of :if
returns nil, the menu shows COMMAND as inactive and the header line does
not show it.  The values of :other and :keep are those in
`qwen-companion-header-keys', the other properties those of
`easy-menu-define'.  Among ROWS there are (NAME ROW...), a submenu, and
strings, which are lines in the menu."
  (declare (indent 2))
  (let ((map (intern (format "%s-map" mode)))
        (rows-with-keys (cl-remove-if-not #'qwen-companion-header--row-p
                                          (cl-mapcan (lambda (row)
                                                       (if (qwen-companion-header--submenu-p row)
                                                           (copy-sequence (cdr row))
                                                         (list row)))
                                                     rows))))
    `(progn
       (defvar ,map
         (qwen-companion-buffers-keymap
          ,@(cl-loop for (keys command) in rows-with-keys
                     append (cl-loop for key in (if (listp keys) keys (list keys))
                                     append `(,key ,(if (eq key :parent)
                                                           command
                                                         `#',command)))))
         ,(format "Keymap of `%s'." mode))
       ,@(when title
           `((easy-menu-define ,(intern (format "%s-menu" mode)) ,map
               ,(format "Menu of `%s'." mode)
               '(,title ,@(mapcan #'qwen-companion-header--menu-items rows)))))
       (put ',mode 'qwen-companion-header-keys
            (list ,@(cl-loop for (_ command _ label . properties) in rows-with-keys
                             when (stringp label)
                             collect `(cons ',(list command label (plist-get properties :other)
                                                    (plist-get properties :keep))
                                            (lambda () ,(if (plist-member properties :if)
                                                            (plist-get properties :if)
                                                          t)))))))))

(defun qwen-companion-header--submenu-p (row)
  "Return non-nil when ROW of a table of keys is a submenu."
  (and (consp row) (stringp (car row)) (consp (cadr row))))

(defun qwen-companion-header--row-p (row)
  "Return non-nil when ROW of a table of keys is that of a command."
  (and (consp row) (symbolp (cadr row))))

(defun qwen-companion-header--menu-items (row)
  "Return a list of the items for ROW of a table of keys in a menu."
  (pcase row
    ((pred stringp)
     (list row))
    ((pred qwen-companion-header--submenu-p)
     (list (cons (car row) (mapcan #'qwen-companion-header--menu-items (cdr row)))))
    (`(,_ ,command ,(and item (pred stringp)) . ,rest)
     (list (apply #'vector item command
                  (cl-loop for (property value)
                           on (if (keywordp (car rest)) rest (cdr rest)) by #'cddr
                           unless (memq property '(:other :keep))
                           append (list (if (eq property :if) :active property) value)))))))

(defun qwen-companion-header-mode-keys (&optional mode)
  "Return the keys of MODE that fit now, as parts of `qwen-companion-header-line'.
The default of MODE is the major mode."
  (qwen-companion-header-keys
   (cl-loop for (key . fits) in (get (or mode major-mode) 'qwen-companion-header-keys)
            when (funcall fits)
            collect key)))

(defconst qwen-companion-header--rest-width 20
  "Least columns for what follows the other columns of a list in their line.")

(defvar-local qwen-companion-header--columns nil
  "All columns of the list, (COLUMNS . COUNT).
In narrow windows the first COUNT stand in the first line of a row.")

(defun qwen-companion-header-set-up-list (summary &optional count)
  "Set up the current buffer as a list, with its keys in the header line.
The columns are named below it, and lines that are too long are wrapped.
With COUNT, a row has all but the first COUNT columns in a second line
where they have no room.
SUMMARY is a function that returns the beginning of the header line, (NAME
. PARTS) as for `qwen-companion-header-line'.  Call this in the mode's body."
  (setq-local truncate-lines nil
              truncate-partial-width-windows nil
              word-wrap t
              wrap-prefix "    "
              ;; A name in a right-to-left script must not turn the line around.
              bidi-paragraph-direction 'left-to-right
              tabulated-list-use-header-line nil
              revert-buffer-function #'qwen-companion-header--revert-list
              header-line-format
              `((:eval (qwen-companion-header--list-line #',summary))))
  (setq qwen-companion-header--columns (cons tabulated-list-format count))
  (tabulated-list-init-header)
  (qwen-companion-header-set-up-mode)
  ;; Which keys fit depends on the line at point.
  (add-hook 'post-command-hook #'force-mode-line-update nil t))

(defun qwen-companion-header--revert-list (&rest _)
  "Compute the entries of the list of the current buffer, and print it."
  (run-hooks 'tabulated-list-revert-hook)
  (qwen-companion-header-print-list))

(defun qwen-companion-header-print-list ()
  "Print the list of the current buffer.
Point stays on its row; at first it is on the first one."
  (let ((new (zerop (buffer-size))))
    (qwen-companion-header--fit-columns)
    (tabulated-list-print t)
    (when new
      (goto-char (point-min))
      (forward-line))))

(defun qwen-companion-header--fit-columns ()
  "Take those columns of the list that have room in a line of its window.
Where there is more room than they need, give some to the first two."
  (pcase-let ((`(,columns . ,count) qwen-companion-header--columns)
              (window (get-buffer-window nil 0)))
    (when (and count window)
      (let ((room (- (window-width window) tabulated-list-padding
                     qwen-companion-header--rest-width
                     (cl-loop for (_ width) across columns sum (1+ width)))))
        (setq tabulated-list-format
              (if (< room 0)
                  (seq-subseq columns 0 count)
                (cl-loop with more = (min 12 (/ room 2))
                         for (name width . rest) across columns
                         for index from 0
                         vconcat (list (cons name (cons (if (< index 2) (+ width more) width)
                                                        rest)))))))
      (unless (cl-find (car tabulated-list-sort-key) tabulated-list-format
                       :key #'car :test #'equal)
        (setq tabulated-list-sort-key nil))
      (tabulated-list-init-header))))

(defun qwen-companion-header--list-line (summary)
  "Return the header line of a list, with SUMMARY for its beginning."
  (pcase-let ((`(,name . ,parts) (funcall summary)))
    (qwen-companion-header-line name (append parts (qwen-companion-header-mode-keys)))))

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

;;; Keys in messages

(defun qwen-companion-header-text (format &rest arguments)
  "Return FORMAT with ARGUMENTS, and its keys as the user has them.
FORMAT names them like `substitute-command-keys', ARGUMENTS do not.  The
keys are those in the selected window.  Where a command has none, but its
counterpart for files has, whose name ends in \"-here\", name that one."
  (apply #'format
         (replace-regexp-in-string
          "\\(\\\\<[^>]+>\\)?\\\\\\[\\([^]]+\\)\\]"
          (lambda (found)
            (let* ((map (match-string 1 found))
                   (command (intern (match-string 2 found)))
                   (here (intern-soft (format "%s-here" command))))
              (save-match-data
                (with-current-buffer (window-buffer)
                  (string-replace
                   "%" "%%"
                   (substitute-command-keys
                    (if (or map (not (commandp here)) (where-is-internal command nil t))
                        found
                      (format "\\[%s]" here))))))))
          format t t)
         arguments))

(defun qwen-companion-header-error (format &rest arguments)
  "Signal a `user-error' with FORMAT and ARGUMENTS.
See `qwen-companion-header-text'."
  (user-error "%s" (apply #'qwen-companion-header-text format arguments)))

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

(defvar-local qwen-companion-header-help-origin nil
  "The buffer whose keys the help in this buffer describes.")

(defun qwen-companion-header-help ()
  "Show the keys of this buffer with a description of each."
  (interactive)
  (let* ((origin (current-buffer))
         (map (qwen-companion-header--map))
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
      (setq-local qwen-companion-header-help-origin origin
                  truncate-partial-width-windows nil
                  word-wrap t
                  wrap-prefix (make-string qwen-companion-header--keys-width ?\s)))))

(provide 'qwen-companion-header)
;;; qwen-companion-header.el ends here
