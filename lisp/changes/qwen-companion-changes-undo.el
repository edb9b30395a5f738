;;; qwen-companion-changes-undo.el --- Undo what is at point in the buffer of changes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Undo or restore a region of lines, a hunk, a file or a turn.
;; qwen-companion-undo.el changes the files; this file interprets point and
;; region, asks before, and reports the result.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-changes-file)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-items)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-undo)
(require 'qwen-companion-untrusted)

;;;###autoload (autoload 'qwen-companion-changes-undo "qwen-companion-changes" nil t)
(defun qwen-companion-changes-undo ()
  "Undo the hunk at point, the region's lines, the file or the turn.
Your later changes stay.  For a turn, describe the action and ask first.
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-bring-back] brings it back."
  (interactive)
  (qwen-companion-changes-items-on-change
    (qwen-companion-changes-undo--act t)))

;;;###autoload (autoload 'qwen-companion-changes-bring-back "qwen-companion-changes" nil t)
(defun qwen-companion-changes-bring-back ()
  "Bring back the hunk at point, the region's lines, the file or the turn."
  (interactive)
  (qwen-companion-changes-items-on-change
    (qwen-companion-changes-undo--act nil)))

(defun qwen-companion-changes-undo--act (undo)
  "Undo each change at point or in the region; restore it if UNDO is nil."
  (when (memq (car (ensure-list qwen-companion-changes-items-scope)) '(commit tree begun merge))
    (qwen-companion-header-error "This view cannot be undone; \\[qwen-companion-changes-show-turns] shows the turns"))
  (let ((root (qwen-companion-changes-items-group-root
               (qwen-companion-changes-items-group-at-point))))
    (unless (or (file-remote-p root) (file-directory-p root))
      (qwen-companion-header-error "%s is removed; \\[qwen-companion-changes-merge] merges its changes into the main tree"
       (qwen-companion-untrusted-path root))))
  (qwen-companion-changes-undo-call-on-chosen
   (lambda (view changes)
     (qwen-companion-changes-undo--act-on-changes view changes undo))
   (lambda (group path)
     (qwen-companion-changes-undo--act-on-files group path undo))))

(defun qwen-companion-changes-undo-call-on-chosen (on-changes on-files)
  "Call ON-CHANGES or ON-FILES with each change in the region or at point.
ON-CHANGES gets a view and a list of its changes: the lines of the region,
or the hunk.  ON-FILES gets a group and a file of it, nil for all."
  (when (eql (point) (cl-shiftf qwen-companion-changes-items-stale-point nil))
    (user-error "The lines in the region have just changed; check them and try again"))
  (cond
   ((use-region-p)
    (let ((start (region-beginning)) (end (region-end)))
      (goto-char start)
      (deactivate-mark)
      (qwen-companion-changes-undo--call-on-lines start end on-changes)))
   ((qwen-companion-hunks-view-hunk-at (point))
    (funcall
     on-changes
     (qwen-companion-changes-items-current-view (qwen-companion-changes-items-view-at-point))
     (qwen-companion-hunks-hunk-changes (qwen-companion-hunks-view-hunk-at (point)))))
   (t
    (let ((view (and (eq 'body (car (qwen-companion-items-key-at (point))))
                     (qwen-companion-changes-items-view-at-point))))
      (when (and view
                 (eq 'ready (qwen-companion-changes-file-state view))
                 (qwen-companion-changes-file-changes view))
        (user-error "Not on a hunk; the file's heading undoes the whole file")))
    (funcall on-files
             (qwen-companion-changes-items-group-at-point)
             (qwen-companion-changes-items-path-at-point)))))

(defun qwen-companion-changes-undo-call-on-views (function)
  "Call FUNCTION with each change in the region or at point.
Its arguments are a group, a list of views of its files, and the changes
of the only view, or nil for all."
  (qwen-companion-changes-undo-call-on-chosen
   (lambda (view changes)
     (funcall function (qwen-companion-changes-items-group-at-point) (list view) changes))
   (lambda (group path)
     (funcall function group
              (mapcar (apply-partially #'qwen-companion-changes-items-await-view group)
                      (if path
                          (list path)
                        (or (mapcar #'qwen-companion-changed-file-path
                                    (qwen-companion-changes-items-all-files group))
                            (user-error "No file was changed here"))))
              nil))))

(defun qwen-companion-changes-undo--act-on-changes (view list undo)
  "Undo each of LIST, of VIEW, or bring it back if UNDO is nil."
  (let* ((path (qwen-companion-changes-file-path view))
         (name (file-name-nondirectory (qwen-companion-untrusted-path path)))
         (changes (cl-remove-if
                   (lambda (change)
                     (eq undo (and (qwen-companion-hunks-change-text change) t)))
                   list))
         (deletes (and undo
                       (null (qwen-companion-changes-file-before view))
                       (null (cl-set-difference
                              (qwen-companion-changes-file-changes view) changes)))))
    (unless changes
      (user-error "%s" (cdr (qwen-companion-changes-undo--words undo))))
    (let ((difference (qwen-companion-changes-file-difference view)))
      (qwen-companion-undo-confirm
       (list path) (if undo "undo" "bring back")
       (and deletes (format "Delete %s, which the agent made" name)))
      ;; The question took a while, in which the file may have changed.
      (qwen-companion-changes-items-await-ready view)
      (unless (and (eq difference (qwen-companion-changes-file-difference view))
                   (cl-every (lambda (change)
                               (eq undo (null (qwen-companion-hunks-change-text change))))
                             changes))
        (qwen-companion-changes-items-update)
        (user-error "%s has just changed; check it and try again" name)))
    (let ((result (qwen-companion-changes-file-toggle-undone
                   view changes
                   (qwen-companion-changes-undo-turn-of
                    (qwen-companion-changes-items-group-at-point) (list path))
                   (format "%s %d change%s of %s"
                           (if undo "Undo" "Bring back") (length changes)
                           (if (cdr changes) "s" "") name))))
      (qwen-companion-changes-items-update)
      (qwen-companion-changes-undo-report
       (list (cons path result)) 1 (qwen-companion-changes-undo--words undo)))))

(defun qwen-companion-changes-undo--act-on-files (group path undo)
  "Undo each change of PATH in GROUP, or restore it if UNDO is nil.
PATH nil means all files of GROUP."
  (let* ((files (if path
                    (list (qwen-companion-changes-items-shown-file group path))
                  (qwen-companion-changes-items-all-files group)))
         (paths (mapcar #'qwen-companion-changed-file-path files))
         (kinds (mapcar #'qwen-companion-changed-file-kind files))
         (id (qwen-companion-changes-items-group-id group))
         (turn (and (stringp id) (qwen-companion-journal-turn id)))
         (undone (and turn (eq t (qwen-companion-changes-items-undone turn)))))
    (unless files
      (user-error "No file was changed here"))
    (when (and (or undone (not undo))
               (cl-notany (lambda (file) (qwen-companion-changes-undo--remaining-p group file undo))
                          files))
      (user-error "%s" (cdr (qwen-companion-changes-undo--words undo))))
    (qwen-companion-undo-confirm
     paths (if undo "undo" "bring back")
     (and (or (null path) (memq (if undo 'added 'deleted) kinds))
          (format "%s %s: %s%s" (if undo "Undo" "Bring back")
                  (qwen-companion-changes-undo-title group)
                  (qwen-companion-changes-undo-words
                   files (if undo 'undo 'bring-back)
                   (lambda (file) (qwen-companion-changes-undo--lines group file undo)))
                  (if undo (qwen-companion-changes-undo--journal-size-words paths) ""))))
    (let ((results (qwen-companion-undo-files
                    (qwen-companion-changes-items-group-part group) files
                    (qwen-companion-changes-undo-turn-of group paths)
                    (format "%s %s" (if undo "Undo" "Bring back")
                            (if path
                                (file-name-nondirectory
                                 (qwen-companion-untrusted-path path))
                              (qwen-companion-changes-undo-title group)))
                    (if undo 'undo 'bring-back))))
      (qwen-companion-changes-items-reload paths)
      (qwen-companion-changes-items-update)
      (qwen-companion-changes-undo-report
       results (length files) (qwen-companion-changes-undo--words undo)))))

(defun qwen-companion-changes-undo--remaining-p (group file undo)
  "Return non-nil if a part of FILE in GROUP may be left to undo.
With UNDO nil, return non-nil if a part may be left to restore.  Do not
wait for texts that are not loaded yet."
  (let* ((path (qwen-companion-changed-file-path file))
         (view (qwen-companion-changes-undo--compared group file))
         (changes (and view (qwen-companion-changes-file-changes view))))
    (or (cl-some (if undo (lambda (change) (not (qwen-companion-hunks-change-text change)))
                   #'qwen-companion-hunks-change-text)
                 changes)
        (pcase (qwen-companion-changed-file-kind file)
          ('renamed (eq undo (file-exists-p path)))
          ((and 'added (guard undo)) (file-exists-p path))
          ((and 'deleted (guard undo)) (not (file-exists-p path)))
          (_ (or (null changes) (qwen-companion-changed-file-mode file)))))))

(defun qwen-companion-changes-undo--compared (group file)
  "Return the view of FILE in GROUP once its texts are compared.
Return nil if they cannot be, and for a remote file."
  (let* ((path (qwen-companion-changed-file-path file))
         (view (and (not (file-remote-p path))
                    ;; A directory may be in its place.
                    (ignore-error (file-error user-error)
                      (qwen-companion-changes-items-await-view group path)))))
    (and view (eq 'ready (qwen-companion-changes-file-state view)) view)))

(defun qwen-companion-changes-undo--lines (group file undo)
  "Describe the lines of FILE in GROUP that an undo writes; \"\" if unknown.
With UNDO nil, describe those that a restore writes.  The numbers refer to
the current text; for removed lines, to the line before them."
  (let* ((view (qwen-companion-changes-undo--compared group file))
         (most 4)
         (places (and view
                      (cl-loop
                       for (change start . count) in (qwen-companion-changes-file-positions view)
                       when (eq undo (null (qwen-companion-hunks-change-text change)))
                       collect (if (> count 1)
                                   (format "%d-%d" start (+ start count -1))
                                 (number-to-string (max 1 (+ start count -1))))))))
    (if (null places)
        ""
      (format " (line%s %s%s)"
              (if (or (cdr places) (string-search "-" (car places))) "s" "")
              (string-join (seq-take places most) ", ")
              (if (length> places most)
                  (format " and %d more places" (- (length places) most))
                "")))))

(defconst qwen-companion-changes-undo--report-size-from (* 100 1024 1024)
  "Bytes of files above which the question mentions the size of the journal.")

(defun qwen-companion-changes-undo--journal-size-words (paths)
  "Return a clause for the question before PATHS are undone, or nil.
It says how much the journal will keep of them, if that is a lot."
  (let ((bytes (cl-loop for path in paths
                        unless (file-remote-p path)
                        sum (or (file-attribute-size (qwen-companion-disk-attributes path)) 0))))
    (if (< bytes qwen-companion-changes-undo--report-size-from)
        ""
      (format "; the journal keeps %s of it, until M-x qwen-companion-journal-prune or for two weeks"
              (qwen-companion-journal-size bytes)))))

(defun qwen-companion-changes-undo--words (undo)
  "Return the words for a report of undoing, or of restoring if UNDO is nil."
  (if undo
      (cons "undone"
            (qwen-companion-header-text
             "Already undone; \\[qwen-companion-changes-bring-back] brings it back"))
    (cons "brought back"
          (qwen-companion-header-text "Not undone; \\[qwen-companion-changes-undo] undoes it"))))

(defun qwen-companion-changes-undo-turn-of (group paths)
  "Return the id of the turn that PATHS of GROUP belong to, or nil."
  (or (qwen-companion-changes-items-group-turn group)
      (cl-loop for turn in (qwen-companion-journal-turns)
               when (and (eq 'agent (qwen-companion-turn-who turn))
                         (cl-some (lambda (path)
                                    (qwen-companion-journal-file turn path))
                                  paths))
               return (qwen-companion-turn-id turn))))

(defun qwen-companion-changes-undo-title (group)
  "Return the prompt of the turn of GROUP, or the name of the scope."
  (let* ((id (qwen-companion-changes-items-group-id group))
         (turn (and (stringp id) (qwen-companion-journal-turn id)))
         (prompt (qwen-companion-untrusted-line (or (qwen-companion-turn-prompt turn) ""))))
    (cond ((not turn) (qwen-companion-changes-items-scope-words))
          ((string-empty-p prompt)
           (format "the turn of %s"
                   (qwen-companion-changes-items-time (qwen-companion-turn-start turn))))
          (t (format "\"%s\"" (truncate-string-to-width prompt 40 nil nil t))))))

(defun qwen-companion-changes-undo-words (files action &optional lines)
  "Describe the effect of ACTION on FILES.
ACTION is as in `qwen-companion-undo-apply-steps'.  Name the files with more
than a change of text, and with LINES also one or two files with changed
text.  LINES is a function that describes the changed lines of a file."
  (pcase-let*
      ((`(,change ,make ,rename)
        (pcase-exhaustive action
          ('undo '("change back" "make again" "rename back"))
          ('bring-back '("change again" "make again" "rename again"))
          ('merge '("change" "make" "rename"))))
       (made (if (eq action 'undo) 'deleted 'added))
       (parts nil))
    (cl-flet ((say (verb most test &optional more)
                (when-let* ((these (cl-remove-if-not test files)))
                  (push (format "%s %s" verb (qwen-companion-changes-undo--names these most more))
                        parts)))
              (of (kind)
                (lambda (file) (eq kind (qwen-companion-changed-file-kind file)))))
      (say change (if lines 2 1)
           (lambda (file)
             (and (eq 'modified (qwen-companion-changed-file-kind file))
                  (not (qwen-companion-changed-file-link file))))
           lines)
      (say (concat change " the link") 10
           (lambda (file)
             (and (eq 'modified (qwen-companion-changed-file-kind file))
                  (qwen-companion-changed-file-link file))))
      (say (concat change " the mode of") 10
           (lambda (file)
             (or (qwen-companion-changed-file-mode file)
                 (eq 'mode (qwen-companion-changed-file-kind file)))))
      (say "delete" 10 (of (if (eq made 'deleted) 'added 'deleted)))
      (say make 10 (of made))
      (say rename 10 (of 'renamed)))
    (string-join (nreverse parts) ", ")))

(defun qwen-companion-changes-undo--names (files most &optional more)
  "Return the names of at most MOST of FILES; beyond 1 or 2, their number.
The function MORE, if any, returns a text to append to a file's name."
  (if (and (<= most 2) (length> files most))
      (format "%d files" (length files))
    (let ((names (mapcar (lambda (file)
                           (concat (file-name-nondirectory
                                    (qwen-companion-untrusted-path
                                     (qwen-companion-changed-file-path file)))
                                   (and more (funcall more file))))
                         (seq-take files most))))
      (cond ((length= files 1) (car names))
            ((length> files most)
             (format "%s and %d more" (string-join names ", ") (- (length files) most)))
            (t (concat (string-join (butlast names) ", ") " and " (car (last names))))))))

(defun qwen-companion-changes-undo-step (group path)
  "Return the step to undo PATH of GROUP."
  (qwen-companion-undo-step-from-texts
   (qwen-companion-changes-items-group-root group)
   (car (qwen-companion-journal-read-texts
         (qwen-companion-journal-await
          'journal-texts
          (append (qwen-companion-changes-items-group-part group)
                  (list :files (list (qwen-companion-undo-wanted-file
                                      (qwen-companion-changes-items-shown-file
                                       group path))))))))
   'undo))

(defun qwen-companion-changes-undo-report (results count words)
  "Display a message about RESULTS of undoing, of COUNT files.
They are as in `qwen-companion-undo-apply-steps'.  WORDS is (DONE . NOTHING):
a verb for the action, and the error if there was nothing to do.  Show a
buffer with conflicts."
  (let ((text (qwen-companion-changes-undo-outcome results count (car words))))
    (cond
     ((null text) (user-error "%s" (cdr words)))
     ((and (seq-some (lambda (result) (stringp (cdr result))) results)
           (not (seq-some (lambda (result) (memq (cdr result) '(written unsaved conflict)))
                          results)))
      (user-error "%s" text))
     (t (message "%s" text)))))

(defun qwen-companion-changes-undo-outcome (results count done-words)
  "Describe the outcome for COUNT files, or return nil if there was nothing to do.
RESULTS are from `qwen-companion-undo-apply-steps', DONE-WORDS a verb for the
action.  Show a buffer with conflicts."
  (let* ((done (cl-count 'written results :key #'cdr))
         (unsaved (rassq 'unsaved results))
         (conflicts (cl-remove 'conflict results :key #'cdr :test-not #'eq))
         (kept (cl-remove-if-not (lambda (result) (stringp (cdr result))) results))
         (left (- count (length results)))
         (parts
          (delq nil
                (list
                 (when (> done 0)
                   (format "%s%s" done-words
                           (if (> count 1) (format (ngettext " in %d file" " in %d files" done) done) "")))
                 (when unsaved
                   (format "%s in %s, which is not saved"
                           done-words
                           (file-name-nondirectory
                            (qwen-companion-untrusted-path (car unsaved)))))
                 (when conflicts
                   (format "%d conflict%s with your edits, not written until you resolve %s: %s"
                           (length conflicts) (if (cdr conflicts) "s" "")
                           (if (cdr conflicts) "them" "it")
                           (mapconcat (lambda (result)
                                        (file-name-nondirectory
                                         (qwen-companion-untrusted-path (car result))))
                                      (seq-take conflicts 3) ", ")))
                 (when kept
                   (qwen-companion-changes-undo--left-alone kept))
                 (when (> left 0)
                   (format "stopped, %d file%s left as %s; repeat to continue"
                           left (if (= left 1) "" "s") (if (= left 1) "it is" "they are"))))))
         (text (string-join parts "; ")))
    (when-let* ((buffer (and conflicts (qwen-companion-disk-visiting (caar conflicts)))))
      (display-buffer buffer)
      (qwen-companion-conflicts-show buffer))
    (unless (and (= left 0)
                 (cl-every (lambda (result) (eq 'same (cdr result))) results))
      (concat (upcase (substring text 0 1)) (substring text 1)))))

(defun qwen-companion-changes-undo--left-alone (kept)
  "Describe which files were left alone; KEPT has the reason for each.
If there are many, log all of them in *Messages*."
  (let ((lines (mapcar (lambda (result)
                         (format "%s (%s)"
                                 (file-name-nondirectory
                                  (qwen-companion-untrusted-path (car result)))
                                 (qwen-companion-untrusted-line (cdr result))))
                       kept))
        (most 3))
    (concat "left alone: " (string-join (seq-take lines most) ", ")
            (when (length> lines most)
              (let ((inhibit-message t))
                (dolist (line lines)
                  (message "Left alone: %s" line)))
              (format " and %d more, see *Messages*" (- (length lines) most))))))

(defun qwen-companion-changes-undo--call-on-lines (start end on-changes)
  "Call ON-CHANGES with the changed lines from START to END, of one file."
  (goto-char start)
  (unless (or (qwen-companion-hunks-view-hunk-at (point))
              (and (qwen-companion-hunks-view-goto-hunk (point) nil)
                   (< (point) end)))
    (user-error "No hunk in the region"))
  (let ((view (qwen-companion-changes-items-current-view
               (qwen-companion-changes-items-view-at-point))))
    (funcall on-changes view
             (or (qwen-companion-changes-undo--select-lines view start end)
                 (user-error "No changed line in the region")))))

(defun qwen-companion-changes-undo--select-lines (view start end)
  "Return each change of VIEW on the lines from START to END.
Split a change that is only partly in the range, so that the rest stays."
  (let ((difference (qwen-companion-changes-file-difference view))
        (selected nil))
    (save-excursion
      (goto-char start)
      (forward-line 0)
      (while (< (point) end)
        (when (eq difference (qwen-companion-hunks-view-difference-at (point)))
          (pcase (qwen-companion-hunks-view-source-at (point))
            (`(,(and kind (or 'removed 'added 'dropped)) ,change . ,index)
             (let ((place (if (eq kind 'removed)
                              (cons index 0)
                            (cons (qwen-companion-hunks-change-old-count change) index)))
                   (after (if (eq kind 'removed)
                              (cons (1+ index) 0)
                            (cons (qwen-companion-hunks-change-old-count change)
                                  (1+ index)))))
               (if-let* ((cell (assq change selected)))
                   (setcdr (cdr cell) after)
                 (push (cons change (cons place after)) selected))))))
        (forward-line 1)))
    (mapcar (pcase-lambda (`(,change . (,from . ,to)))
              (qwen-companion-changes-undo--part difference change from to))
            (nreverse selected))))

(defun qwen-companion-changes-undo--part (difference change from to)
  "Split from CHANGE of DIFFERENCE the lines FROM to TO, and return these.
Both are (REMOVED . ADDED), the numbers of lines before them."
  (let ((all (cons (qwen-companion-hunks-change-old-count change)
                   (qwen-companion-hunks-proposed-count change))))
    (unless (equal to all)
      (qwen-companion-hunks-split difference change (car to) (cdr to)))
    (if (equal from '(0 . 0))
        change
      (qwen-companion-hunks-split difference change (car from) (cdr from)))))

(provide 'qwen-companion-changes-undo)
;;; qwen-companion-changes-undo.el ends here
