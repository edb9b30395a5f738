;;; qwen-companion-review-unified.el --- Reviews hunk by hunk in one buffer  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The front end that shows a proposal as a unified diff.  As in the other
;; front end, the accepted text is the one in the proposal's buffer; dropping
;; a hunk here changes that text, see qwen-companion-hunks.el.
;;
;; The buffer looks like a `diff-mode' buffer, and the read-only commands of
;; that mode work.  Its commands that edit the diff, or apply it to a file,
;; are not bound.

;;; Code:

(require 'add-log)
(require 'cl-lib)
(require 'diff-mode)
(require 'outline)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-review-edit)
(require 'qwen-companion-review-windows)
(require 'qwen-companion-roots)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-unified-context 3
  "Lines of context around the hunks of a review.
In a review, \\<qwen-companion-unified-mode-map>\\[qwen-companion-hunks-more-context] and \\[qwen-companion-hunks-less-context] change it for that review.
With 0, each change is a hunk of its own."
  :group 'qwen-companion
  :type 'natnum)

(defconst qwen-companion-review-unified--page-lines 1000
  "Lines per page; RET on a button shows the next page of hunks.")

(defconst qwen-companion-review-unified--compare-delay 0.2
  "Seconds from a change of the text elsewhere to the next comparison.")

(defvar-local qwen-companion-review-unified--ignore-space nil
  "Non-nil to hide hunks that change white space only.")
(defvar-local qwen-companion-review-unified--hunks nil
  "All hunks in order, shown or not.")
(defvar-local qwen-companion-review-unified--undrawn nil
  "The tail of `qwen-companion-review-unified--hunks' that is not shown yet.")
(defvar-local qwen-companion-review-unified--state nil
  "Symbol `comparing' or `failed', or nil when the hunks are valid.")
(defvar-local qwen-companion-review-unified--status nil
  "The number of kept hunks, as shown to the user.")
(defvar-local qwen-companion-review-unified--timer nil
  "In the buffer of a proposal: timer of the next comparison, or nil.")

;;; The mode

(qwen-companion-header-define-keys qwen-companion-unified-mode "Review"
  ;; The parent is not `diff-mode-map', see the commentary.
  (:parent special-mode-map nil)
  ("C-c C-c" qwen-companion-diff-accept "Accept" "accept" :keep t)
  (("C-c C-n" "A") qwen-companion-diff-accept-next "Accept and Go to the Next")
  ("C-c C-k" qwen-companion-diff-reject "Reject" "reject" :keep t)
  "---"
  (("x" "k") qwen-companion-unified-drop "Drop the Change or Region" "drop/restore"
   :other qwen-companion-unified-restore)
  ("K" qwen-companion-unified-drop-hunk "Drop the Hunk")
  ("o" qwen-companion-unified-drop-others "Drop All Others")
  ("u" qwen-companion-unified-restore "Bring Back")
  ("s" qwen-companion-unified-split "Split the Hunk")
  ("e" qwen-companion-unified-edit "Edit the Lines")
  ([remap undo] qwen-companion-unified-undo "Undo"
   :if (qwen-companion-hunks-steps (qwen-companion-review-unified--difference)))
  "---"
  ("n" qwen-companion-unified-next nil "next/previous" :other qwen-companion-unified-previous)
  ("p" qwen-companion-unified-previous nil)
  ("RET" qwen-companion-unified-visit "Visit the File")
  ("TAB" qwen-companion-diff-switch "Show in Ediff" "Ediff"
   :if (qwen-companion-proposal-file-p qwen-companion-proposal-current))
  (nil qwen-companion-diff-switch "Show the Whole Plan" "whole plan"
       :if (not (qwen-companion-proposal-file-p qwen-companion-proposal-current)))
  ("C-c C-u" qwen-companion-diff-show-unsaved "Your Unsaved Text"
   :if (qwen-companion-proposal-unsaved qwen-companion-proposal-current))
  ("C-c C-w" qwen-companion-diff-show-warnings "All Warnings")
  ("C-c C-l" qwen-companion-diff-toggle-line-ends nil)
  ("w" qwen-companion-unified-toggle-space "Hide Changes of White Space"
   :style toggle :selected qwen-companion-review-unified--ignore-space)
  ("+" qwen-companion-hunks-more-context nil)
  ("-" qwen-companion-hunks-less-context nil)
  ("." qwen-companion-unified-describe nil)
  "---"
  (("M-n" "]") qwen-companion-review "Next Review")
  (("M-p" "[") qwen-companion-review-previous "Previous Review")
  ("l" qwen-companion-diffs "All Reviews")
  ("q" qwen-companion-diff-bury "Put Aside" "put aside")
  ("?" qwen-companion-header-help nil "keys")
  ([mouse-2] qwen-companion-header-click nil))

(define-derived-mode qwen-companion-unified-mode diff-mode "Review"
  "Major mode of a review hunk by hunk.
Accepting sends the proposed text without the dropped hunks.

The hooks of `diff-mode' do not run: they expect patches.  This mode has
a hook of its own.
See Info node `(qwen-companion)Hunk by hunk'.

\\{qwen-companion-unified-mode-map}"
  :interactive nil
  ;; The functions of `diff-mode' parse the text; ours use properties.
  (setq font-lock-defaults nil)
  (setq-local diff-refine nil
              diff-font-lock-syntax nil
              minor-mode-overriding-map-alist nil
              outline-regexp "@@ "
              outline-level (lambda () 1)
              revert-buffer-function #'qwen-companion-review-unified--revert
              truncate-lines nil
              ;; Set here: `diff-mode' would also bind its keys.
              buffer-read-only t)
  (remove-hook 'write-contents-functions #'diff-write-contents-hooks t)
  (add-hook 'qwen-companion-review-accept-functions #'qwen-companion-review-unified--check nil t)
  (buffer-disable-undo)
  (qwen-companion-header-set-up-mode)
  (jit-lock-register #'qwen-companion-hunks-view-fontify))

(defun qwen-companion-review-unified--make-buffer (proposal)
  "Return a new buffer to show PROPOSAL."
  (let ((buffer (qwen-companion-proposal-make-buffer proposal "hunks")))
    (with-current-buffer buffer
      (let ((diff-default-read-only nil)
            ;; `diff-mode' adds hooks that run after each change and command.
            (diff-update-on-the-fly nil))
        ;; As for the sides of a review, keep global modes off the buffer.
        (qwen-companion-untrusted-without-hooks #'qwen-companion-unified-mode)
        (run-hooks 'qwen-companion-unified-mode-hook))
      (setq qwen-companion-proposal-current proposal
            qwen-companion-hunks-view-context-lines qwen-companion-unified-context
            qwen-companion-hunks-view-note-function #'qwen-companion-review-unified--note
            qwen-companion-hunks-view-redraw-function #'qwen-companion-review-unified--redraw
            header-line-format '((:eval (qwen-companion-review-unified--header))))
      (add-hook 'kill-buffer-hook
                #'qwen-companion-review-windows-control-killed nil t))
    buffer))

(defun qwen-companion-review-unified--difference (&optional proposal)
  "Return the difference of PROPOSAL, by default that of this buffer."
  (let ((proposal (or proposal qwen-companion-proposal-current)))
    (or (qwen-companion-proposal-difference proposal)
        (setf (qwen-companion-proposal-difference proposal)
              (make-qwen-companion-hunks
               :old (qwen-companion-proposal-disk-buffer proposal)
               :new (qwen-companion-proposal-buffer proposal))))))

(defun qwen-companion-review-unified--header ()
  "Return the header line: file, CLI, number of kept hunks, warnings, keys."
  (let ((proposal qwen-companion-proposal-current))
    (qwen-companion-header-line
     (qwen-companion-review-file proposal)
     `(,@(qwen-companion-review-origin-parts proposal)
       (0 . ,(when-let* ((status qwen-companion-review-unified--status))
               (cons status (replace-regexp-in-string " hunks?" "" status))))
       ,@(qwen-companion-review-warning-parts proposal)
       ,@(qwen-companion-review-mode-keys)))))

(defun qwen-companion-review-unified--status-text ()
  "Return the number of kept hunks, or the reason why there is none."
  (pcase qwen-companion-review-unified--state
    ('comparing "comparing...")
    ('failed "not comparable")
    (_
     (let ((all (length qwen-companion-review-unified--hunks))
           (dropped (cl-count-if #'qwen-companion-hunks-dropped-p
                                 qwen-companion-review-unified--hunks))
           (hidden (cl-count-if #'qwen-companion-hunks-hunk-hidden
                                qwen-companion-review-unified--hunks)))
       (concat (format "%d of %d hunk%s kept" (- all dropped) all
                       (if (= all 1) "" "s"))
               (when qwen-companion-review-unified--ignore-space
                 (format ", %d hidden: only white space" hidden)))))))

;;; Drawing

(defun qwen-companion-review-unified--draw (&optional change)
  "Redraw all hunks; go to the hunk of CHANGE, or keep point."
  (let ((inhibit-read-only t)
        (change (or change
                    (when-let* ((hunk (qwen-companion-hunks-view-hunk-at (point))))
                      (car (qwen-companion-hunks-hunk-changes hunk)))))
        (shown (count-lines (point-min) (point-max))))
    (erase-buffer)
    (setq qwen-companion-review-unified--hunks (qwen-companion-review-unified--grouped)
          qwen-companion-review-unified--undrawn qwen-companion-review-unified--hunks)
    (dolist (hunk qwen-companion-review-unified--hunks)
      (setf (qwen-companion-hunks-hunk-hidden hunk)
            (and qwen-companion-review-unified--ignore-space
                 (qwen-companion-hunks-only-space-p
                  (qwen-companion-review-unified--difference) hunk))))
    (qwen-companion-review-unified--draw-file)
    (qwen-companion-review-unified--draw-page
     (max shown qwen-companion-review-unified--page-lines))
    (qwen-companion-review-unified--draw-stranded)
    (goto-char (point-min))
    (or (and change (qwen-companion-hunks-view-goto-change change))
        (qwen-companion-hunks-view-goto-hunk (point-min) nil)
        (goto-char (or (text-property-any (point-min) (point-max)
                                          'qwen-companion-review-unified-line-ends t)
                       (point-min))))
    (mapc #'qwen-companion-hunks-view-show-change (get-buffer-window-list nil nil t))
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-review-unified--grouped ()
  "Return the hunks in the present grouping."
  (let ((difference (qwen-companion-review-unified--difference)))
    (qwen-companion-hunks-group
     (qwen-companion-hunks-changes difference)
     qwen-companion-hunks-view-context-lines
     (qwen-companion-hunks-line-count (qwen-companion-hunks-old difference)))))

(defun qwen-companion-review-unified--finish-drawing ()
  "Finish drawing: update status, hidden characters and window points."
  (qwen-companion-review-unified--update-status)
  (qwen-companion-hunks-view-finish))

(defun qwen-companion-review-unified--update-status ()
  "Update the number of kept hunks in the header line."
  (setq qwen-companion-review-unified--status (qwen-companion-review-unified--status-text))
  (force-mode-line-update))

(defun qwen-companion-review-unified--show-text (text)
  "Show TEXT in place of the hunks."
  (let ((inhibit-read-only t))
    (erase-buffer)
    (insert text "\n")
    (setq qwen-companion-review-unified--hunks nil
          qwen-companion-review-unified--undrawn nil)
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-review-unified--draw-file ()
  "Insert the header of the file."
  (let* ((path (qwen-companion-proposal-path qwen-companion-proposal-current))
         (root (qwen-companion-roots-of default-directory))
         (real (qwen-companion-proposal-real qwen-companion-proposal-current))
         (name (qwen-companion-untrusted-text
                (cond (real)
                      (root (file-relative-name path root))
                      (t (qwen-companion-places-name path)))))
         (start (point)))
    (insert "--- "
            (if (file-exists-p path) (concat "a/" name) null-device)
            "\n+++ b/" name "\n")
    (put-text-property start (point) 'face 'diff-file-header)
    (if-let* ((text (qwen-companion-proposal-line-end-summary qwen-companion-proposal-current)))
        (let ((start (point)))
          (insert "\\ " (upcase-initials (substring text 0 1)) (substring text 1)
                  (substitute-command-keys
                   (if (qwen-companion-proposal-as-on-disk qwen-companion-proposal-current)
                       "; \\[qwen-companion-unified-restore] here uses the proposed ones\n"
                     "; \\[qwen-companion-unified-drop] here keeps those on disk\n")))
          (add-text-properties start (point)
                               '(face warning qwen-companion-review-unified-line-ends t)))
      (unless qwen-companion-review-unified--hunks
        (insert "No differences left.\n")))))

(defun qwen-companion-review-unified--draw-page (lines)
  "Insert the next hunks at point until there are at least LINES lines.
Then insert a button for the rest, if any."
  (let ((difference (qwen-companion-review-unified--difference))
        (count 0))
    (while (and qwen-companion-review-unified--undrawn (< count lines))
      (let ((hunk (pop qwen-companion-review-unified--undrawn))
            (start (point)))
        (unless (qwen-companion-hunks-hunk-hidden hunk)
          (qwen-companion-hunks-view-draw difference hunk)
          (cl-incf count (count-lines start (point)))))))
  (let ((rest (cl-count-if-not #'qwen-companion-hunks-hunk-hidden
                               qwen-companion-review-unified--undrawn)))
    (when (> rest 0)
      (qwen-companion-hunks-view-draw-button
       (format "%d more hunk%s (RET shows more)" rest (if (= rest 1) "" "s"))
       #'qwen-companion-review-unified--show-more))))

(defun qwen-companion-review-unified--show-more ()
  "Show the next page of hunks in place of its button."
  (let ((inhibit-read-only t)
        (place (text-property-any (point-min) (point-max)
                                  'qwen-companion-hunks-view-action
                                  #'qwen-companion-review-unified--show-more)))
    (when place
      (goto-char place)
      (delete-region place (min (point-max) (1+ (line-end-position))))
      (save-excursion
        (qwen-companion-review-unified--draw-page qwen-companion-review-unified--page-lines))
      (qwen-companion-review-unified--finish-drawing))))

(defun qwen-companion-review-unified--draw-stranded ()
  "Insert at the end the dropped hunks that cannot be restored.
The lines are comments, not a part of the diff."
  (let ((stranded (qwen-companion-hunks-stranded
                   (qwen-companion-review-unified--difference))))
    (when stranded
      (goto-char (point-max))
      (dolist (change (reverse stranded))
        (let ((start (point)))
          (insert (substitute-command-keys
                   "# Dropped; the text here was edited since, so \\[qwen-companion-unified-restore] cannot restore it:\n"))
          (dolist (line (split-string (string-remove-suffix
                                       "\n" (qwen-companion-hunks-change-text change))
                                      "\n"))
            (insert "# " line "\n"))
          (add-text-properties
           start (point)
           '(face shadow qwen-companion-review-unified-stranded t)))))))

;;; Definitions around hunks

(defconst qwen-companion-review-unified--mode-limit 100000
  "Characters above which the major mode is not asked for definitions.")

(defconst qwen-companion-review-unified--mode-seconds 0.005
  "Seconds that a major mode may spend on naming the definitions around hunks.")

(defvar-local qwen-companion-review-unified--definition-names nil
  "Names of the definitions around hunks: (TICK SECONDS . ALIST), or nil.
TICK is the tick of the disk side.  ALIST has names by line; SECONDS is
the time that the major mode took.")

(defun qwen-companion-review-unified--note (difference hunk)
  "Return the words in the head of HUNK of DIFFERENCE: definition and state."
  (let ((place (qwen-companion-review-unified--definition-name difference hunk)))
    (concat
     (and place
          (propertize (concat " " place) 'face '(diff-function diff-hunk-header)))
     (and (qwen-companion-hunks-dropped-p hunk)
          (propertize (substitute-command-keys " dropped, \\[qwen-companion-unified-restore] restores it")
                      'face 'warning)))))

(defun qwen-companion-review-unified--definition-name (difference hunk)
  "Return the name of the definition that HUNK of DIFFERENCE is in, or nil."
  (let* ((old (qwen-companion-hunks-old difference))
         (tick (buffer-chars-modified-tick old))
         (line (qwen-companion-hunks-change-old
                (car (qwen-companion-hunks-hunk-changes hunk)))))
    (unless (eql tick (car qwen-companion-review-unified--definition-names))
      (setq qwen-companion-review-unified--definition-names (list tick 0)))
    (pcase-let* ((`(,_ ,seconds . ,known) qwen-companion-review-unified--definition-names)
                 (place (assq line known)))
      (unless place
        (let ((start (float-time)))
          (setq place (cons line
                            (with-current-buffer old
                              (qwen-companion-buffers-widened
                                (qwen-companion-hunks-goto line)
                                (or (and (< seconds qwen-companion-review-unified--mode-seconds)
                                         (qwen-companion-review-unified--definition))
                                    (qwen-companion-review-unified--unindented-line))))))
          (setf (nth 1 qwen-companion-review-unified--definition-names)
                (+ seconds (- (float-time) start))))
        (push place (nthcdr 2 qwen-companion-review-unified--definition-names)))
      (cdr place))))

(defun qwen-companion-review-unified--definition ()
  "Return the name of the definition at point by the major mode, or nil.
Return nil if the mode has no function for it: the default of Emacs
searches for a word and a colon, which takes a second in a long line and
finds headers of letters."
  (when (and add-log-current-defun-function
             (< (buffer-size) qwen-companion-review-unified--mode-limit))
    (when-let* ((name (ignore-errors (save-match-data (add-log-current-defun)))))
      (qwen-companion-untrusted-line name))))

(defun qwen-companion-review-unified--unindented-line ()
  "Return the last line before point that begins with a letter, or nil.
diff(1) and git show that line as the function."
  (when (and (derived-mode-p 'prog-mode)
             (re-search-backward "^[[:alpha:]$_]" (max (point-min) (- (point) 20000)) t))
    (qwen-companion-untrusted-line
     (buffer-substring-no-properties
      (point) (min (line-end-position) (+ (point) 60))))))

;;; Following the texts

(defun qwen-companion-review-unified--update (proposal)
  "Show the hunks of PROPOSAL, comparing its texts first if necessary."
  (let ((difference (qwen-companion-review-unified--difference proposal)))
    (with-current-buffer (qwen-companion-review-windows-control proposal)
      (if (qwen-companion-hunks-up-to-date-p difference)
          (qwen-companion-review-unified--show-result t)
        (unless qwen-companion-review-unified--hunks
          (qwen-companion-review-unified--show-text "Comparing the texts..."))
        (setq qwen-companion-review-unified--state 'comparing)
        (qwen-companion-review-unified--update-status)
        (qwen-companion-hunks-compare
         difference
         (lambda (done)
           (when-let* ((buffer (qwen-companion-review-windows-control proposal))
                       ((eq 'unified (qwen-companion-proposal-style proposal))))
             (with-current-buffer buffer
               (qwen-companion-review-unified--show-result done)))))))))

(defun qwen-companion-review-unified--show-result (done)
  "Show the hunks if DONE is non-nil, else that comparing failed."
  (setq qwen-companion-review-unified--state (if done nil 'failed))
  (if done
      (qwen-companion-review-unified--draw)
    (qwen-companion-review-unified--show-text
     (substitute-command-keys
      "The comparison failed: \\[revert-buffer] tries again, \\[qwen-companion-diff-switch] shows both texts in Ediff."))))

(defun qwen-companion-review-unified--follow-text (proposal on)
  "If ON is non-nil, compare the text of PROPOSAL after each edit from now on.
If ON is nil, stop."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (qwen-companion-timers-cancel qwen-companion-review-unified--timer)
    (if on
        (add-hook 'after-change-functions
                  #'qwen-companion-review-unified--text-changed nil t)
      (remove-hook 'after-change-functions
                   #'qwen-companion-review-unified--text-changed t))))

(defun qwen-companion-review-unified--text-changed (&rest _)
  "Schedule a comparison, because the proposed text in this buffer changed."
  (unless qwen-companion-review-unified--timer
    (setq qwen-companion-review-unified--timer
          (run-at-time qwen-companion-review-unified--compare-delay nil
                       #'qwen-companion-review-unified--compare-again
                       qwen-companion-proposal-current))))

(defun qwen-companion-review-unified--compare-again (proposal)
  "Compare the text of PROPOSAL again, unless only dropping has changed it."
  (when (qwen-companion-review-windows-control proposal)
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (setq qwen-companion-review-unified--timer nil))
    (qwen-companion-review-refresh 'unified proposal)))

(defun qwen-companion-review-unified--revert (&rest _)
  "Compare the texts again."
  (setf (qwen-companion-hunks-requested-ticks (qwen-companion-review-unified--difference)) nil)
  (qwen-companion-review-unified--update qwen-companion-proposal-current))

;;; Front end

(cl-defmethod qwen-companion-review-fits-p ((_style (eql 'unified)) proposal select)
  "Return non-nil when there is room for PROPOSAL beside the selected window.
If SELECT is non-nil, no room is needed."
  (or select (qwen-companion-review-windows-beside-p proposal)))

(cl-defmethod qwen-companion-review-show ((_style (eql 'unified)) proposal select)
  "Show PROPOSAL hunk by hunk; SELECT non-nil means to select the review."
  (let* ((frame (qwen-companion-review-windows-frame proposal select))
         (selected (selected-window))
         (shown (window-buffer selected))
         (view (qwen-companion-review-windows-new-view proposal frame select))
         (buffer (or (qwen-companion-review-windows-view-control view)
                     (qwen-companion-review-unified--make-buffer proposal))))
    (setf (qwen-companion-proposal-view proposal) view
          (qwen-companion-review-windows-view-control view) buffer)
    (qwen-companion-review-windows-show-in frame view buffer)
    (when (qwen-companion-proposal-unsaved-copy proposal)
      (qwen-companion-review-update-sides 'unified proposal))
    (qwen-companion-review-unified--follow-text proposal t)
    (qwen-companion-review-unified--update proposal)
    (qwen-companion-review-windows-select proposal select selected shown)))

(cl-defmethod qwen-companion-review-hide ((_style (eql 'unified)) proposal)
  "Remove the review of PROPOSAL from the screen and restore the windows.
Windows in which the user has shown other buffers since stay."
  (when (buffer-live-p (qwen-companion-proposal-buffer proposal))
    (qwen-companion-review-unified--follow-text proposal nil))
  (qwen-companion-review-windows-remove proposal))

(cl-defmethod qwen-companion-review-update-sides ((_style (eql 'unified)) proposal)
  "Show the copy of unsaved text of PROPOSAL below the hunks, or remove it."
  (let* ((yours (qwen-companion-proposal-unsaved-copy proposal))
         (window (get-buffer-window (qwen-companion-review-windows-control proposal) t))
         (third (and window
                     (cl-find-if (lambda (other)
                                   (window-parameter
                                    other 'qwen-companion-review-unified-third))
                                 (window-list (window-frame window) 'no-minibuffer)))))
    (cond
     ((null window))
     ((null yours)
      (when third
        (ignore-errors (delete-window third))))
     (t
      (setq third (or third (split-window window nil 'below)))
      (set-window-parameter third 'qwen-companion-review-unified-third t)
      (qwen-companion-review-windows-show-buffer third yours)))))

(cl-defmethod qwen-companion-review-refresh ((_style (eql 'unified)) proposal)
  "Compare the texts of PROPOSAL again if they are shown and have changed."
  (when (and (qwen-companion-review-windows-control proposal)
             (not (qwen-companion-hunks-up-to-date-p
                   (qwen-companion-review-unified--difference proposal))))
    (qwen-companion-review-unified--update proposal)))

(cl-defmethod qwen-companion-review-line-ends-changed ((_style (eql 'unified)) proposal)
  "Update how the line ends of PROPOSAL differ from those on disk."
  (when-let* ((buffer (qwen-companion-review-windows-control proposal)))
    (with-current-buffer buffer
      (unless qwen-companion-review-unified--state
        (let ((there (get-text-property (point) 'qwen-companion-review-unified-line-ends)))
          (qwen-companion-review-unified--draw)
          (when there
            (goto-char (text-property-any (point-min) (point-max)
                                          'qwen-companion-review-unified-line-ends t))
            (qwen-companion-review-unified--finish-drawing)))))))

;;; Commands

(defun qwen-companion-review-unified--ensure-ready ()
  "Signal a `user-error' unless the hunks match the present texts."
  (qwen-companion-buffers-require-mode 'qwen-companion-unified-mode)
  (pcase qwen-companion-review-unified--state
    ('failed (qwen-companion-header-error
              "The comparison failed; \\[qwen-companion-diff-switch] shows both texts in Ediff"))
    ('comparing (user-error "Still comparing; try again in a moment"))
    (_ (unless (qwen-companion-hunks-up-to-date-p (qwen-companion-review-unified--difference))
         (qwen-companion-review-unified--update qwen-companion-proposal-current)
         (user-error "The text was changed elsewhere; check the new hunks and try again")))))

(defun qwen-companion-review-unified--hunk-at-point ()
  "Return the hunk at point, or signal a `user-error'."
  (qwen-companion-review-unified--ensure-ready)
  (or (qwen-companion-hunks-view-hunk-at (point))
      (user-error (if (get-text-property (point) 'qwen-companion-review-unified-stranded)
                      "Cannot restore this hunk: the text there was edited since"
                    "Not on a hunk"))))

(defun qwen-companion-unified-next (&optional count)
  "Go to the next hunk, or forward by COUNT hunks."
  (interactive "p" qwen-companion-unified-mode)
  (dotimes (_ (abs (or count 1)))
    (let ((back (< (or count 1) 0)))
      (unless (or (qwen-companion-hunks-view-goto-hunk (point) back)
                  (and (not back)
                       qwen-companion-review-unified--undrawn
                       (let ((place (point)))
                         (qwen-companion-review-unified--show-more)
                         (goto-char place)
                         (qwen-companion-hunks-view-goto-hunk place nil))))
        (user-error "No %s hunk" (if back "previous" "next")))))
  (qwen-companion-hunks-view-show-change (selected-window)))

(defun qwen-companion-unified-previous (&optional count)
  "Go to the previous hunk, or back by COUNT hunks."
  (interactive "p" qwen-companion-unified-mode)
  (qwen-companion-unified-next (- (or count 1))))

(defun qwen-companion-review-unified--set-line-ends (as-on-disk)
  "If point is on the change of line ends, apply it or drop it.
AS-ON-DISK non-nil means to drop it.  Return nil if point is elsewhere."
  (when (get-text-property (point) 'qwen-companion-review-unified-line-ends)
    (when (eq as-on-disk (qwen-companion-proposal-as-on-disk
                          qwen-companion-proposal-current))
      (qwen-companion-header-error
       (if as-on-disk
           "Already as on disk; \\[qwen-companion-unified-restore] uses the proposed ones"
         "Already as proposed; \\[qwen-companion-unified-drop] keeps those on disk")))
    (qwen-companion-diff-toggle-line-ends qwen-companion-proposal-current)
    t))

(defun qwen-companion-review-unified--changes-at-point (&optional whole)
  "Return each change that a command at point acts on, as a list.
With an active region, return the changes with lines in it; on a changed
line, its change; elsewhere in a hunk, or with WHOLE, all its changes."
  (let ((hunk (or (and (use-region-p) (not whole))
                  (qwen-companion-review-unified--hunk-at-point))))
    (pcase (and (not whole)
                (if (use-region-p)
                    'region
                  (qwen-companion-hunks-view-source-at (point))))
      ('region
       (qwen-companion-review-unified--ensure-ready)
       (or (qwen-companion-review-unified--changes-between (region-beginning) (region-end))
           (user-error "No change in the region")))
      (`(,(or 'removed 'added 'dropped) ,change . ,_) (list change))
      (_ (qwen-companion-hunks-hunk-changes hunk)))))

(defun qwen-companion-review-unified--changes-between (start end)
  "Return each change with lines between START and END, as a list."
  (let (changes)
    (while (< start end)
      (pcase (get-text-property start 'qwen-companion-hunks-view-source)
        (`(,(or 'removed 'added 'dropped) ,change)
         (unless (memq change changes)
           (push change changes))))
      (setq start (next-single-property-change
                   start 'qwen-companion-hunks-view-source nil end)))
    (nreverse changes)))

(defun qwen-companion-review-unified--drop (picked &optional at)
  "Drop each change in PICKED, and show that.
Point goes to the change AT, by default the first of these."
  (let ((difference (qwen-companion-review-unified--difference))
        ;; The proposal is read-only for the user.
        (inhibit-read-only t))
    (qwen-companion-hunks-drop
     difference (make-qwen-companion-hunks-hunk :changes picked))
    (apply #'qwen-companion-hunks-record difference 'dropped picked)
    (qwen-companion-review-unified--show-changed picked at)))

(defun qwen-companion-unified-drop (&optional whole)
  "Drop the change at point, or those in the region.
Accepting leaves it out.  On the head of a hunk or an unchanged line,
or if WHOLE is non-nil, drop the whole hunk.
\\<qwen-companion-unified-mode-map>\\[qwen-companion-unified-restore] restores it, \\[undo] undoes the last step."
  (interactive nil qwen-companion-unified-mode)
  (unless (qwen-companion-review-unified--set-line-ends t)
    (let ((changes (cl-remove-if #'qwen-companion-hunks-change-text
                                 (qwen-companion-review-unified--changes-at-point whole))))
      (unless changes
        (qwen-companion-header-error "Already dropped; \\[qwen-companion-unified-restore] restores it"))
      (qwen-companion-review-unified--drop changes))))

(defun qwen-companion-unified-drop-hunk ()
  "Drop the whole hunk at point."
  (interactive nil qwen-companion-unified-mode)
  (qwen-companion-unified-drop t))

(defun qwen-companion-unified-drop-others ()
  "Drop everything but the change at point, or those in the region."
  (interactive nil qwen-companion-unified-mode)
  (let* ((here (qwen-companion-review-unified--changes-at-point))
         (others (cl-remove-if (lambda (change)
                                 (or (memq change here)
                                     (qwen-companion-hunks-change-text change)))
                               (qwen-companion-hunks-changes
                                (qwen-companion-review-unified--difference)))))
    (unless others
      (user-error "No other change to drop"))
    (qwen-companion-review-unified--drop others (car here))))

(defun qwen-companion-unified-restore ()
  "Restore the dropped change at point, or those in the region.
On the head of a hunk, or on an unchanged line, restore the whole hunk."
  (interactive nil qwen-companion-unified-mode)
  (unless (qwen-companion-review-unified--set-line-ends nil)
    (let ((changes (cl-remove-if-not #'qwen-companion-hunks-change-text
                                     (qwen-companion-review-unified--changes-at-point)))
          (difference (qwen-companion-review-unified--difference))
          (inhibit-read-only t))
      (unless changes
        (qwen-companion-header-error "Not dropped; \\[qwen-companion-unified-drop] drops it"))
      (qwen-companion-hunks-restore
       difference (make-qwen-companion-hunks-hunk :changes changes))
      (apply #'qwen-companion-hunks-record difference 'restored changes)
      (qwen-companion-review-unified--show-changed changes))))

(defun qwen-companion-unified-undo ()
  "Undo the last step in this review: dropping, restoring, splitting, editing.
Repeat it to undo earlier steps.  It does not undo accepted changes."
  (interactive nil qwen-companion-unified-mode)
  (qwen-companion-review-unified--ensure-ready)
  (pcase-let* ((difference (qwen-companion-review-unified--difference))
               (`(,kind . ,arguments) (let ((inhibit-read-only t))
                                        (qwen-companion-hunks-undo difference))))
    (qwen-companion-review-unified--show-changed
     (and (memq kind '(dropped restored)) (mapcar #'car arguments)))
    (message "Undone: %s" (pcase kind
                            ('dropped "dropping")
                            ('restored "restoring")
                            ('edited "the edit")
                            (_ "the split")))))

(defun qwen-companion-review-unified--show-changed (picked &optional at)
  "Update the display after a step with each change in PICKED.
If these are all changes of the hunk at point, and it still is one hunk,
redraw only it.  Else go to the change AT, by default the first of PICKED."
  (let ((hunk (qwen-companion-hunks-view-hunk-at (point))))
    (deactivate-mark)
    (cond
     ((not (qwen-companion-hunks-up-to-date-p (qwen-companion-review-unified--difference)))
      (qwen-companion-review-unified--update qwen-companion-proposal-current))
     ((and hunk
           (equal picked (qwen-companion-hunks-hunk-changes hunk))
           (= (length qwen-companion-review-unified--hunks)
              (length (qwen-companion-review-unified--grouped))))
      (when (cdr picked)
        ;; On the head, undo acts on the whole hunk.
        (qwen-companion-hunks-view-goto-change (car picked)))
      (qwen-companion-hunks-view-redraw hunk (list hunk))
      (qwen-companion-review-unified--update-status))
     (t
      (qwen-companion-review-unified--draw (or at (car picked))))))
  (run-hooks 'qwen-companion-proposal-changed-hook))

(defun qwen-companion-unified-split ()
  "Split the hunk before the line at point.
On an unchanged line between two changes, split between these."
  (interactive nil qwen-companion-unified-mode)
  (let* ((hunk (qwen-companion-review-unified--hunk-at-point))
         (changes (qwen-companion-hunks-hunk-changes hunk))
         (difference (qwen-companion-review-unified--difference))
         (begin
          (pcase (qwen-companion-hunks-view-source-at (point))
            (`(context ,line . ,index)
             (cl-find-if (lambda (change)
                           (>= (qwen-companion-hunks-change-old change)
                               (+ line index)))
                         changes))
            (`(,kind ,change . ,index)
             (let ((removed (if (eq kind 'removed)
                                index
                              (qwen-companion-hunks-change-old-count change)))
                   (added (if (eq kind 'removed) 0 index)))
               (unless (and (= 0 removed added) (eq change (car changes)))
                 (if (= 0 removed added)
                     change
                   (prog1 (qwen-companion-hunks-split difference change
                                                      removed added)
                     (qwen-companion-hunks-record difference 'split change)))))))))
    (when (or (null begin) (eq begin (car changes)))
      (user-error "Nothing to split here; move below the first change of the hunk"))
    (unless (qwen-companion-hunks-change-cut begin)
      (setf (qwen-companion-hunks-change-cut begin) t)
      (qwen-companion-hunks-record difference 'cut begin))
    (qwen-companion-review-unified--split-hunk hunk begin)))

(defun qwen-companion-review-unified--split-hunk (hunk begin)
  "Split the display of HUNK before the change BEGIN, which may be new."
  (let* ((difference (qwen-companion-review-unified--difference))
         (changes (qwen-companion-hunks-hunk-changes hunk))
         (all (if (memq begin changes)
                  changes
                (let ((from (memq (car changes)
                                  (qwen-companion-hunks-changes difference))))
                  (cl-subseq from 0 (1+ (length changes))))))
         (tail (memq begin all))
         (gap (let ((previous (car (last (cl-ldiff all tail)))))
                (- (qwen-companion-hunks-change-old begin)
                   (qwen-companion-hunks-change-end previous))))
         (after (min qwen-companion-hunks-view-context-lines (/ (1+ gap) 2)))
         (first (make-qwen-companion-hunks-hunk
                 :changes (cl-ldiff all tail)
                 :before (qwen-companion-hunks-hunk-before hunk)
                 :after after
                 :whole (qwen-companion-hunks-hunk-whole hunk)))
         (second (make-qwen-companion-hunks-hunk
                  :changes (cl-copy-list tail)
                  :before (min qwen-companion-hunks-view-context-lines (- gap after))
                  :after (qwen-companion-hunks-hunk-after hunk)
                  :whole (qwen-companion-hunks-hunk-whole hunk)))
         (cell (memq hunk qwen-companion-review-unified--hunks)))
    (setcar cell first)
    (setcdr cell (cons second (cdr cell)))
    (qwen-companion-hunks-view-redraw hunk (list first second))
    (goto-char (car (qwen-companion-hunks-view-bounds second)))
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-unified-toggle-space ()
  "Hide hunks that change white space only, or show them again.
Hiding a hunk neither drops nor restores it."
  (interactive nil qwen-companion-unified-mode)
  (qwen-companion-review-unified--ensure-ready)
  (setq qwen-companion-review-unified--ignore-space
        (not qwen-companion-review-unified--ignore-space))
  (qwen-companion-review-unified--draw))

(defun qwen-companion-review-unified--redraw ()
  "Draw the hunks again, or signal a `user-error' while there are none."
  (qwen-companion-review-unified--ensure-ready)
  (qwen-companion-review-unified--draw))

(defun qwen-companion-review-unified--check (proposal)
  "Signal a `user-error' while the current buffer does not show PROPOSAL's text."
  (unless (or (not (eq proposal qwen-companion-proposal-current))
              (eq qwen-companion-review-unified--state 'failed))
    (qwen-companion-review-unified--ensure-ready)))

(defun qwen-companion-unified-describe ()
  "Describe the hunk at point in words, for users who cannot see its colours."
  (interactive nil qwen-companion-unified-mode)
  (let* ((hunk (qwen-companion-review-unified--hunk-at-point))
         (difference (qwen-companion-review-unified--difference))
         (place (qwen-companion-review-unified--definition-name difference hunk)))
    (message
     "%s" (concat
           (format "Hunk %d of %d%s, %s.  "
                   (1+ (cl-position hunk qwen-companion-review-unified--hunks))
                   (length qwen-companion-review-unified--hunks)
                   (if place (format " in %s" place) "")
                   (if (qwen-companion-hunks-dropped-p hunk) "dropped" "kept"))
           (mapconcat (lambda (change)
                        (qwen-companion-hunks-view-describe difference change))
                      (qwen-companion-hunks-hunk-changes hunk) "  ")))))

(defun qwen-companion-unified-visit ()
  "Visit the line at point in the file, in another window.
If there is no file yet, go to the line in the proposed text.  On a
button, push it."
  (interactive nil qwen-companion-unified-mode)
  (if-let* ((press (get-text-property (point) 'qwen-companion-hunks-view-action)))
      (funcall press)
    (qwen-companion-review-unified--ensure-ready)
    (let ((lines (qwen-companion-hunks-view-lines-at))
          (path (qwen-companion-proposal-path qwen-companion-proposal-current)))
      (if (file-exists-p path)
          (pop-to-buffer (find-file-noselect (qwen-companion-places-name path)))
        (pop-to-buffer (qwen-companion-proposal-buffer
                        qwen-companion-proposal-current)))
      (widen)
      (qwen-companion-hunks-goto
       (if buffer-file-name (car lines) (cdr lines))))))

(defun qwen-companion-unified-edit (&optional whole)
  "Edit the proposed lines of the hunk at point in a buffer of their own.
With a prefix argument WHOLE, or outside of hunks, edit all of the
proposed text."
  (interactive "P" qwen-companion-unified-mode)
  (qwen-companion-review-unified--ensure-ready)
  (let* ((proposal qwen-companion-proposal-current)
         (hunk (and (not whole) (qwen-companion-hunks-view-hunk-at (point)))))
    (cond
     ((null hunk)
      (qwen-companion-review-edit proposal (cdr (qwen-companion-hunks-view-lines-at))))
     ((qwen-companion-hunks-dropped-p hunk)
      (qwen-companion-header-error "This hunk is dropped; \\[qwen-companion-unified-restore] restores it"))
     (t
      (pcase-let ((`(,_ ,_ ,line ,count) (qwen-companion-hunks-view-extent hunk)))
        (qwen-companion-review-edit
         proposal (1+ (- (cdr (qwen-companion-hunks-view-lines-at)) line)) line count))))))

(provide 'qwen-companion-review-unified)
;;; qwen-companion-review-unified.el ends here
