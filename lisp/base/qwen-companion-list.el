;;; qwen-companion-list.el --- Live lists, each defined by a table  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-list-define' defines a list of things, such as CLIs: a major
;; mode with columns and keys.  A visible list updates itself; point stays on
;; its thing.  Columns without room go into a second line of each row.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'tabulated-list)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-header)
(require 'qwen-companion-timers)

(defconst qwen-companion-list--limit 300
  "Maximum rows of a list; Emacs needs 0.1 s to draw them.")

(defconst qwen-companion-list--rest-width 20
  "Least width of the last column that is kept in the first line of a row.")

(cl-defstruct (qwen-companion-list (:copier nil))
  "A kind of live list: its columns, its rows and when they are updated.
See `qwen-companion-list-define' for the slots."
  buffer thing columns first-line cut rows entry find empty remark load
  category name period hooks set-up)

(defmacro qwen-companion-list-define (mode title docstring slots &rest keys)
  "Define the major MODE of a list, called TITLE, with DOCSTRING.
KEYS are rows of `qwen-companion-header-define-keys'; those that all lists
have are added.  SLOTS is a property list:

:buffer      name of the list's buffer
:thing       what a row is about, a noun
:columns     as `tabulated-list-format'
:first-line  the number of columns in the first line of a row in a narrow
             window, nil for all
:cut         number of the column that is cut at its beginning, not its end
:rows        function that returns the things in their order
:entry       function that returns the entry of a thing: (ID COLUMNS)
:find        function that returns the thing with an ID, or nil
:empty       text in place of rows, or a function that returns it
:remark      function that returns a warning for the header line, or nil
:load        function called before each update; its argument is non-nil
             when the user has asked for one
:category    completion category of the things, for Embark
:name        function that returns the name of a thing in completion
:period      seconds between two updates of a visible list
:hooks       alist (HOOK . FUNCTION), in use while the buffer is live
:set-up      function called in the mode's body"
  (declare (indent 2) (doc-string 3))
  `(progn
     (qwen-companion-header-define-keys ,mode ,title
       ,@keys
       "---"
       (refresh revert-buffer "Refresh")
       (help qwen-companion-header-help nil)
       ([mouse-2] qwen-companion-header-click nil))
     (put ',mode 'qwen-companion-list (make-qwen-companion-list ,@slots))
     (define-derived-mode ,mode tabulated-list-mode ,title
       ,(concat docstring (format "\n\n\\{%s-map}" mode))
       :interactive nil
       (qwen-companion-list--set-up))))

(defun qwen-companion-list--of (mode)
  "Return the definition of the list with the major MODE."
  (get mode 'qwen-companion-list))

(defun qwen-companion-list--set-up ()
  "Make the current buffer a list by the definition of its major mode."
  (let ((list (qwen-companion-list--of major-mode)))
    (setq-local truncate-lines nil
                truncate-partial-width-windows nil
                word-wrap t
                wrap-prefix "    "
                ;; A name in a right-to-left script must not reverse the line.
                bidi-paragraph-direction 'left-to-right
                tabulated-list-format (qwen-companion-list-columns list)
                tabulated-list-padding 1
                tabulated-list-printer #'qwen-companion-list--print-entry
                tabulated-list-use-header-line nil
                revert-buffer-function #'qwen-companion-list--revert
                header-line-format '((:eval (qwen-companion-list--header))))
    (funcall (or (qwen-companion-list-set-up list) #'ignore))
    (tabulated-list-init-header)
    (qwen-companion-header-set-up-mode)
    (when (qwen-companion-list-category list)
      (qwen-companion-completion-offer-targets #'qwen-companion-list--targets))
    ;; Which keys apply depends on the line at point.
    (add-hook 'post-command-hook #'force-mode-line-update nil t)
    (qwen-companion-buffers-add-hooks (qwen-companion-list-hooks list))
    (qwen-companion-timers-keep-updated #'qwen-companion-list--update
                                        (qwen-companion-list-period list))))

;;; Rows

(defun qwen-companion-list-row ()
  "Return the thing on the line at point, or nil."
  (when-let* ((id (tabulated-list-get-id)))
    (funcall (qwen-companion-list-find (qwen-companion-list--of major-mode)) id)))

(defun qwen-companion-list-at-point ()
  "Return the thing on the line at point, or signal a `user-error'."
  (let ((list (or (qwen-companion-list--of major-mode)
                  (user-error "Not in a list of the companion"))))
    (or (qwen-companion-list-row)
        (user-error "No %s on this line" (qwen-companion-list-thing list)))))

(defun qwen-companion-list--targets ()
  "Return the thing at point for Embark."
  (when-let* ((thing (qwen-companion-list-row))
              (list (qwen-companion-list--of major-mode)))
    `((,(qwen-companion-list-category list) ,(funcall (qwen-companion-list-name list) thing)
       ,(line-beginning-position) . ,(line-end-position)))))

(defvar-local qwen-companion-list--count 0
  "Number of things in the list, drawn or not.")

(defun qwen-companion-list--header ()
  "Return the header line: how many things there are, the remark, and the keys."
  (let ((list (qwen-companion-list--of major-mode))
        (count qwen-companion-list--count))
    (qwen-companion-header-line
     (format "%d %s%s" count (qwen-companion-list-thing list) (if (= count 1) "" "s"))
     `((nil . ,(funcall (or (qwen-companion-list-remark list) #'ignore)))
       ,@(qwen-companion-header-mode-keys)))))

;;; Updating

(defun qwen-companion-list-open (mode &optional before)
  "Show the list with the major MODE in another window, and update it.
First call the function BEFORE, if non-nil, in its buffer."
  (pop-to-buffer (qwen-companion-buffers-in-mode
                  (qwen-companion-list-buffer (qwen-companion-list--of mode)) mode))
  (funcall (or before #'ignore))
  (qwen-companion-list--load t)
  (qwen-companion-timers-update-visible))

(defmacro qwen-companion-list-with-buffer (mode &rest body)
  "Evaluate BODY in the buffer of the list with the major MODE, if it exists."
  (declare (indent 1) (debug t))
  (let ((buffer (make-symbol "buffer")))
    `(let ((,buffer (get-buffer (qwen-companion-list-buffer (qwen-companion-list--of ,mode)))))
       (qwen-companion-buffers-when-live ,buffer
         ,@body))))

(defun qwen-companion-list-close (mode)
  "Kill the buffer of the list with the major MODE, if it exists."
  (qwen-companion-list-with-buffer mode
    (kill-buffer)))

(defun qwen-companion-list--revert (&rest _)
  "Update the current list because the user has asked for that."
  (qwen-companion-list--load t)
  (qwen-companion-list-print))

(defun qwen-companion-list--update ()
  "Update the current list."
  (qwen-companion-list--load nil)
  (qwen-companion-list-print))

(defun qwen-companion-list--load (by-user)
  "Load the data of the current list; BY-USER as for `qwen-companion-list-define'."
  (funcall (or (qwen-companion-list-load (qwen-companion-list--of major-mode)) #'ignore)
           by-user))

(defun qwen-companion-list-print ()
  "Draw the current list; point stays on its thing, in the window too."
  (if-let* ((window (qwen-companion-timers-visible-window)))
      (with-selected-window window
        (qwen-companion-list--draw))
    (qwen-companion-list--draw)))

(defvar qwen-companion-list--computed nil
  "Cache of the drawing under way, a hash table; nil without one.")

(defun qwen-companion-list-once (key function)
  "Return the value of FUNCTION, called once per drawing for KEY."
  (let ((value (if qwen-companion-list--computed
                   (gethash key qwen-companion-list--computed 'unknown)
                 (funcall function))))
    (if (eq value 'unknown)
        (puthash key (funcall function) qwen-companion-list--computed)
      value)))

(defun qwen-companion-list--draw ()
  "Draw each row of the current list, up to the limit.
Point is on the first row at first."
  (let* ((list (qwen-companion-list--of major-mode))
         (qwen-companion-list--computed (make-hash-table :test #'equal))
         (things (funcall (qwen-companion-list-rows list)))
         (more (- (length things) qwen-companion-list--limit))
         (new (null tabulated-list-entries)))
    (setq qwen-companion-list--count (length things))
    (qwen-companion-buffers-without-collecting
      (setq tabulated-list-entries
            (mapcar (qwen-companion-list-entry list)
                    (seq-take things qwen-companion-list--limit)))
      (qwen-companion-list--fit-columns)
      (tabulated-list-print t)
      (qwen-companion-list--print-note
       (cond ((> more 0) (format "%d more" more))
             (things nil)
             ((functionp (qwen-companion-list-empty list))
              (funcall (qwen-companion-list-empty list)))
             (t (qwen-companion-list-empty list)))))
    (when new
      (goto-char (point-min))
      (forward-line))))

(defun qwen-companion-list--print-note (text)
  "Insert TEXT, unless it is nil, below the rows."
  (when text
    (save-excursion
      (goto-char (point-max))
      (let ((inhibit-read-only t))
        (insert (make-string tabulated-list-padding ?\s) text "\n")
        (set-buffer-modified-p nil)))))

;;; Marks

(defvar-local qwen-companion-list-marked nil
  "The ids of the marked things.")

(defconst qwen-companion-list--mark (propertize "*" 'help-echo "Marked")
  "Star before a marked thing.")

(defun qwen-companion-list-mark (on)
  "Mark the thing at point, or remove its mark if ON is nil."
  (qwen-companion-list-at-point)
  (let ((others (remove (tabulated-list-get-id) qwen-companion-list-marked)))
    (setq qwen-companion-list-marked
          (if on (cons (tabulated-list-get-id) others) others))
    (with-silent-modifications
      (tabulated-list-put-tag (if on qwen-companion-list--mark " ")))))

(defun qwen-companion-list-marked-things ()
  "Return the marked things, the first marked first."
  (when qwen-companion-list-marked
    (delq nil (mapcar (qwen-companion-list-find (qwen-companion-list--of major-mode))
                      (reverse qwen-companion-list-marked)))))

;;; Columns

(defun qwen-companion-list--fit-columns ()
  "Select the columns of the list that fit into a line of its window.
Give spare room to the first two columns."
  (let* ((list (qwen-companion-list--of major-mode))
         (columns (qwen-companion-list-columns list))
         (window (get-buffer-window nil 0)))
    (when (and window (qwen-companion-list-first-line list))
      (let ((room (- (window-width window) tabulated-list-padding
                     qwen-companion-list--rest-width
                     (cl-loop for (_ width) across columns sum (1+ width)))))
        (setq tabulated-list-format
              (if (< room 0)
                  (seq-subseq columns 0 (qwen-companion-list-first-line list))
                (cl-loop with more = (min 12 (/ room 2))
                         for (name width . rest) across columns
                         for index from 0
                         vconcat (list (cons name (cons (if (< index 2) (+ width more) width)
                                                        rest)))))))
      (unless (cl-find (car tabulated-list-sort-key) tabulated-list-format
                       :key #'car :test #'equal)
        (setq tabulated-list-sort-key nil))
      (tabulated-list-init-header))))

(defun qwen-companion-list--print-entry (id columns)
  "Print the entry ID with COLUMNS, and its mark.
Columns that do not fit go into a second line."
  (when-let* ((number (qwen-companion-list-cut (qwen-companion-list--of major-mode)))
              (text (aref columns number))
              (width (string-width text))
              (excess (- width (cadr (aref tabulated-list-format number))))
              ((> excess 0)))
    (setq columns (copy-sequence columns))
    (aset columns number
          (propertize (concat "…" (truncate-string-to-width text width (1+ excess)))
                      'help-echo text)))
  (let ((start (point)))
    (tabulated-list-print-entry id (qwen-companion-list--fold columns))
    (when (member id qwen-companion-list-marked)
      (save-excursion
        (goto-char start)
        (tabulated-list-put-tag qwen-companion-list--mark)))))

(defun qwen-companion-list--fold (columns)
  "Return COLUMNS, with a second line in the last for columns without room."
  (let* ((count (length tabulated-list-format))
         (rest (delete "" (append (seq-subseq columns count) nil))))
    (if (= count (length columns))
        columns
      (setq columns (seq-subseq columns 0 count))
      (aset columns (1- count)
            (concat (string-pad (aref columns (1- count))
                                (cadr (aref tabulated-list-format (1- count))) nil t)
                    (and rest (concat "\n    " (string-join rest "  ")))))
      columns)))

(provide 'qwen-companion-list)
;;; qwen-companion-list.el ends here
