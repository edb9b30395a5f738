;;; qwen-companion-changes-file.el --- What an agent changed in a file  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The texts of a file before and after a turn, or another part of the
;; journal, as a difference with hunks; which hunks are undone; and how to
;; undo them.
;;
;; Whether a hunk is undone is not recorded: the current text of the file is
;; compared with the one the agent left.  So it is right after a restart too,
;; or when the user has undone a change by other means.
;;
;; To undo hunks of a file, the bytes that the agent left are split into
;; lines, some of which are replaced by those of the baseline.  So no decoded
;; text is written to a file.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-disk)
(require 'qwen-companion-hunks)
(require 'qwen-companion-journal)
(require 'qwen-companion-merge)
(require 'qwen-companion-undo)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-changes-file (:copier nil))
  "The changes of one file in a part of the journal.
PART is that part, as in a request, and PATH the file.  STATE is nil at
first, then `loading', and finally `ready', `binary' (not a text) or
`failed', with REASON in words.  BEFORE and AFTER are the bytes, unibyte
strings, or nil for no file; BEFORE-MODE and AFTER-MODE its modes, FROM its
old name if it was renamed.  DIFFERENCE is the difference of the texts, in
which undone hunks are dropped.  PRESENT is a list of hunks by which the
current text differs from the text after.  MIXED is non-nil when the
changes include edits of the user, APART as in a `qwen-companion-undo-step'.
UNDONE is non-nil when all was undone at the last comparison.  ASKED
counts the requests, GENERATION the differences."
  part path state reason before after before-mode
  after-mode from difference present mixed apart undone (asked 0) (generation 0))

(defun qwen-companion-changes-file-forget (file)
  "Kill the buffers of FILE, and cancel pending comparisons."
  (when-let* ((difference (qwen-companion-changes-file-difference file)))
    (dolist (buffer (list (qwen-companion-hunks-old difference)
                          (qwen-companion-hunks-new difference)))
      (when (buffer-live-p buffer)
        (kill-buffer buffer))))
  (cl-incf (qwen-companion-changes-file-asked file))
  (setf (qwen-companion-changes-file-difference file) nil
        (qwen-companion-changes-file-state file) nil))

;;; Loading

(defun qwen-companion-changes-file-load (file callback)
  "Request the texts of FILE and their difference; return at once.
Call CALLBACK without arguments whenever the state of FILE changes.
Keep earlier texts until then."
  (let ((request (cl-incf (qwen-companion-changes-file-asked file))))
    (unless (qwen-companion-changes-file-difference file)
      (setf (qwen-companion-changes-file-state file) 'loading))
    (qwen-companion-journal-ask
     'journal-texts
     (append (qwen-companion-changes-file-part file)
             (list :files (list (list :path (qwen-companion-changes-file-path file)
                                      :previous (qwen-companion-changes-file-from file)))))
     (lambda (reply)
       (if (/= request (qwen-companion-changes-file-asked file))
           (qwen-companion-journal-delete-texts reply)
         (qwen-companion-changes-file--loaded file reply callback))))))

(defun qwen-companion-changes-file--loaded (file reply callback)
  "Read the texts of FILE in REPLY and have them compared.
CALLBACK is as in `qwen-companion-changes-file-load'."
  (pcase-let* ((`((,texts ,before ,after)) (qwen-companion-journal-read-texts reply))
               (same (and (qwen-companion-changes-file-difference file)
                          (equal before (qwen-companion-changes-file-before file))
                          (equal after (qwen-companion-changes-file-after file)))))
    (if-let* ((reason (or (qwen-companion-journal-reply-error reply)
                          (qwen-companion-texts-error texts))))
        (qwen-companion-changes-file--end
         file 'failed callback (qwen-companion-journal-sentence reason))
      (setf (qwen-companion-changes-file-before-mode file)
            (qwen-companion-texts-before-mode texts)
            (qwen-companion-changes-file-after-mode file)
            (qwen-companion-texts-after-mode texts)
            (qwen-companion-changes-file-from file)
            (qwen-companion-texts-from texts)
            (qwen-companion-changes-file-mixed file)
            (qwen-companion-texts-mixed texts)
            (qwen-companion-changes-file-apart file)
            (qwen-companion-texts-apart texts)
            (qwen-companion-changes-file-before file) before
            (qwen-companion-changes-file-after file) after)
      (cond
       ((not (and (qwen-companion-undo-text-p before)
                  (qwen-companion-undo-text-p after)))
        (qwen-companion-changes-file--end file 'binary callback))
       (same
        (qwen-companion-changes-file--compare-again file callback))
       (t
        (qwen-companion-changes-file--compare file callback))))))

(defun qwen-companion-changes-file--compare-again (file callback)
  "Compute again which parts of FILE are undone; its texts are unchanged.
CALLBACK is as in `qwen-companion-changes-file-load'.  Changes that the
user has split stay split."
  (let ((difference (qwen-companion-changes-file-difference file)))
    (setf (qwen-companion-changes-file-state file) 'loading
          (qwen-companion-changes-file-difference file) nil)
    (dolist (change (qwen-companion-hunks-changes difference))
      (when (qwen-companion-hunks-change-text change)
        (qwen-companion-hunks-restore
         difference (make-qwen-companion-hunks-hunk :changes (list change)))))
    (qwen-companion-changes-file--compare-with-present
     file difference (qwen-companion-changes-file--coding file) callback)))

(defun qwen-companion-changes-file--end (file state callback &optional reason)
  "Set STATE and REASON of FILE and call CALLBACK."
  (setf (qwen-companion-changes-file-state file) state
        (qwen-companion-changes-file-reason file) reason)
  (qwen-companion-changes-file--note-undone file)
  (funcall callback))

(defun qwen-companion-changes-file-signature (file)
  "Return a value that is a new one whenever FILE must be drawn again."
  (list (qwen-companion-changes-file-state file)
        (qwen-companion-changes-file-reason file)
        (qwen-companion-changes-file-generation file)
        (when (eq 'ready (qwen-companion-changes-file-state file))
          (mapcar (lambda (change)
                    (cons (qwen-companion-hunks-change-cut change)
                          (null (qwen-companion-hunks-change-text change))))
                  (qwen-companion-changes-file-changes file)))))

(defun qwen-companion-changes-file--note-undone (file)
  "Note whether all of FILE is undone."
  (let ((all (and (eq 'ready (qwen-companion-changes-file-state file))
                  (qwen-companion-changes-file-changes file))))
    (setf (qwen-companion-changes-file-undone file)
          (and all (cl-every #'qwen-companion-hunks-change-text all)))))

(defun qwen-companion-changes-file--compare (file callback)
  "Compare the texts of FILE, which have been read.
CALLBACK is as in `qwen-companion-changes-file-load'."
  (let* ((path (qwen-companion-changes-file-path file))
         (coding (qwen-companion-changes-file--coding file))
         (request (qwen-companion-changes-file-asked file))
         (old (qwen-companion-changes-file--make-buffer
               "before" path (qwen-companion-changes-file-before file) coding))
         (new (qwen-companion-changes-file--make-buffer
               "after" path (qwen-companion-changes-file-after file) coding))
         (difference (make-qwen-companion-hunks :old old :new new))
         (buffers (list old new)))
    (cl-incf (qwen-companion-changes-file-generation file))
    (qwen-companion-changes-file--hide-line-ends buffers)
    (qwen-companion-hunks-compare
     difference
     (lambda (done)
       (cond
        ((/= request (qwen-companion-changes-file-asked file))
         (mapc #'kill-buffer buffers))
        ((not done)
         (mapc #'kill-buffer buffers)
         (qwen-companion-changes-file--end file 'failed callback
                                           "the texts could not be compared"))
        (t
         (qwen-companion-changes-file--compare-with-present
          file difference coding callback)))))))

(defun qwen-companion-changes-file--make-buffer (name path bytes coding)
  "Return a new hidden buffer for NAME of PATH with BYTES decoded by CODING."
  (with-current-buffer
      (generate-new-buffer
       (format " *qwen-companion %s: %s*" name
               (file-name-nondirectory (qwen-companion-untrusted-path path)))
       t)
    (buffer-disable-undo)
    (insert (decode-coding-string (or bytes "") coding))
    (qwen-companion-untrusted-set-major-mode path)
    (set-buffer-modified-p nil)
    (current-buffer)))

(defun qwen-companion-changes-file--coding (file)
  "Return the coding system to show FILE in, without one for line ends."
  (let* ((bytes (or (qwen-companion-changes-file-after file)
                    (qwen-companion-changes-file-before file)
                    ""))
         (buffer (qwen-companion-disk-visiting (qwen-companion-changes-file-path file)))
         (named (and buffer (buffer-local-value 'buffer-file-coding-system buffer)))
         (coding
          (cl-find-if
           (lambda (coding)
             (and coding
                  (not (memq (coding-system-type coding) '(undecided raw-text)))
                  (not (string-match-p
                        qwen-companion-backend-not-unicode
                        (decode-coding-string bytes coding)))))
           (list named
                 (cond ((string-prefix-p "\xef\xbb\xbf" bytes) 'utf-8-with-signature)
                       ((string-prefix-p "\xff\xfe" bytes) 'utf-16le-with-signature)
                       ((string-prefix-p "\xfe\xff" bytes) 'utf-16be-with-signature))
                 'utf-8
                 (detect-coding-string bytes t)))))
    (coding-system-change-eol-conversion (or coding 'iso-latin-1) 'unix)))

(defun qwen-companion-changes-file--hide-line-ends (buffers)
  "Convert CR LF to LF in BUFFERS if all lines in all of them end in CR LF."
  (let ((ends (mapcar (lambda (buffer)
                        (with-current-buffer buffer (qwen-companion-disk-line-end)))
                      buffers)))
    (when (equal '("\r\n") (delete-dups (delq nil ends)))
      (dolist (buffer buffers)
        (with-current-buffer buffer
          (when (qwen-companion-disk-line-end)
            (qwen-companion-disk-convert-line-ends "\n")))))))

(defun qwen-companion-changes-file--crlf-p (buffer)
  "Return non-nil when a line in BUFFER ends in CR LF."
  (with-current-buffer buffer
    (save-excursion
      (goto-char (point-min))
      (search-forward "\r\n" nil t))))

;;; What is undone

(defun qwen-companion-changes-file--compare-with-present (file difference coding callback)
  "Drop each change of DIFFERENCE, of FILE, that is undone in the current file.
CODING is how the file is decoded; CALLBACK is as in
`qwen-companion-changes-file-load'."
  (let ((path (qwen-companion-changes-file-path file))
        (from (qwen-companion-changes-file-from file))
        (request (qwen-companion-changes-file-asked file)))
    (if (or (not (file-remote-p path)) (qwen-companion-disk-visiting path))
        (qwen-companion-changes-file--compare-with
         (qwen-companion-changes-file--present file coding) request file difference callback)
      (cl-labels
          ((ask (name others)
             (qwen-companion-journal-ask
              'journal-file (list :path name)
              (lambda (reply)
                (let ((bytes (nth 2 (car (qwen-companion-journal-read-texts reply)))))
                  (cond
                   ((and others (null bytes))
                    (ask (car others) nil))
                   ((buffer-live-p (qwen-companion-hunks-new difference))
                    (qwen-companion-changes-file--compare-with
                     (qwen-companion-changes-file--present file coding (or bytes ""))
                     request file difference callback))))))))
        (ask path (and from (list from)))))))

(defun qwen-companion-changes-file--compare-with (present request file difference callback)
  "Drop each change of DIFFERENCE, of FILE, that is undone in the buffer PRESENT.
Then kill PRESENT.  REQUEST is the number of the request for FILE;
CALLBACK is as in `qwen-companion-changes-file-load'."
  (let ((new (qwen-companion-hunks-new difference)))
    ;; If one of the texts has both line ends, convert none of them.
    (unless (or (qwen-companion-changes-file--crlf-p new)
                (qwen-companion-changes-file--crlf-p
                 (qwen-companion-hunks-old difference)))
      (qwen-companion-changes-file--hide-line-ends (list present)))
    (qwen-companion-merge-compare
     new present
     (lambda (found)
       (unwind-protect
           (if (or (/= request (qwen-companion-changes-file-asked file))
                   (not (buffer-live-p new)))
               (mapc #'kill-buffer
                     (cl-remove-if-not
                      #'buffer-live-p
                      (list (qwen-companion-hunks-old difference) new)))
             (unless (eq found 'failed)
               (dolist (change (qwen-companion-changes-file--undone
                                difference found present))
                 (qwen-companion-hunks-drop
                  difference (make-qwen-companion-hunks-hunk :changes (list change)))))
             (qwen-companion-changes-file-forget file)
             (setf (qwen-companion-changes-file-asked file) request
                   (qwen-companion-changes-file-difference file) difference
                   (qwen-companion-changes-file-present file)
                   (and (listp found) found))
             (qwen-companion-changes-file--end file 'ready callback))
         (kill-buffer present))))))

(defun qwen-companion-changes-file--present (file coding &optional bytes)
  "Return a new buffer with the current text of FILE, unsaved text included.
CODING is how its bytes are decoded: BYTES, or those on the disk."
  (let* ((path (qwen-companion-changes-file-path file))
         (from (qwen-companion-changes-file-from file))
         (path (if (and from (not (file-remote-p path))
                        (not (qwen-companion-disk-attributes path))
                        (qwen-companion-disk-attributes from))
                   from
                 path))
         (visiting (qwen-companion-disk-visiting path)))
    (with-current-buffer (generate-new-buffer " *qwen-companion present*" t)
      (buffer-disable-undo)
      (cond
       (bytes (insert (decode-coding-string bytes coding)))
       ((and visiting (or (buffer-modified-p visiting) (file-remote-p path)))
        (insert (qwen-companion-buffers-text visiting)))
       ;; The text of a link is the name that it leads to.
       ((file-symlink-p path) (insert (file-symlink-p path)))
       ((file-readable-p path)
        (qwen-companion-disk-insert path coding t)))
      (current-buffer))))

(defun qwen-companion-changes-file--undone (difference found present)
  "Return each change of DIFFERENCE that is undone in the buffer PRESENT.
FOUND are the hunks by which PRESENT differs from the new text."
  (cl-remove-if-not
   (lambda (change)
     (qwen-companion-changes-file--undone-p difference change found present))
   (qwen-companion-hunks-changes difference)))

(defun qwen-companion-changes-file--undone-p (difference change found present)
  "Return non-nil when CHANGE of DIFFERENCE is undone in the buffer PRESENT.
FOUND is as in `qwen-companion-changes-file--undone'."
  (let* ((from (qwen-companion-hunks-change-new change))
         (to (+ from (qwen-companion-hunks-change-new-count change)))
         (near (cl-remove-if-not
                (pcase-lambda (`(,start ,count . ,_))
                  (and (<= start to) (>= (+ start count) from)))
                found)))
    (when near
      (pcase-let* ((`(,first ,_ ,present-first ,_) (car near))
                   (`(,last ,last-count ,present-last ,present-count) (car (last near)))
                   (start (min from first))
                   (end (max to (+ last last-count)))
                   (present-start (- present-first (- first start)))
                   (present-end (+ present-last present-count
                                   (- end (+ last last-count))))
                   (text (qwen-companion-hunks-lines
                          present present-start (- present-end present-start)))
                   (others (cl-remove-if-not
                            (lambda (other)
                              (and (not (eq other change))
                                   (<= start (qwen-companion-hunks-change-new other))
                                   (<= (+ (qwen-companion-hunks-change-new other)
                                          (qwen-companion-hunks-change-new-count other))
                                       end)))
                            (qwen-companion-hunks-changes difference))))
        (cl-some (lambda (more)
                   (equal text (qwen-companion-changes-file--without
                                difference (cons change more) start end)))
                 (qwen-companion-changes-file--subsets others))))))

(defun qwen-companion-changes-file--subsets (list)
  "Return the subsets of LIST; for a long list, only nil and LIST itself."
  (if (> (length list) 4)
      (list nil list)
    (let ((all (list nil)))
      (dolist (one list all)
        (setq all (append all (mapcar (apply-partially #'cons one) all)))))))

(defun qwen-companion-changes-file--without (difference undone start end)
  "Return the lines from START up to END of the new text, without UNDONE.
UNDONE are changes of DIFFERENCE, of which none is dropped."
  (let ((new (qwen-companion-hunks-new difference))
        (line start)
        (parts nil))
    (dolist (change (qwen-companion-hunks-changes difference))
      (when (memq change undone)
        (push (qwen-companion-hunks-lines
               new line (- (qwen-companion-hunks-change-new change) line))
              parts)
        (push (qwen-companion-hunks-disk-lines difference change) parts)
        (setq line (+ (qwen-companion-hunks-change-new change)
                      (qwen-companion-hunks-change-new-count change)))))
    (push (qwen-companion-hunks-lines new line (- end line)) parts)
    (apply #'concat (nreverse parts))))

;;; Undoing

(defun qwen-companion-changes-file-positions (file)
  "Return each change of FILE with its lines in the current text, in order.
Each is (CHANGE LINE . COUNT); a COUNT of 0 means that lines were removed
before LINE."
  (let ((shift 0))
    (cl-loop
     for change in (qwen-companion-changes-file-changes file)
     for undone = (qwen-companion-hunks-change-text change)
     for at = (+ shift (qwen-companion-hunks-change-old change))
     for start = (cl-loop for (from count _ present-count)
                          in (qwen-companion-changes-file-present file)
                          ;; One that begins here is what undoing has changed.
                          when (and (<= (+ from count) at) (or (not undone) (< from at)))
                          sum (- present-count count) into more
                          finally return (+ at more))
     collect (cons change
                   (cons start (if undone
                                   (qwen-companion-hunks-change-old-count change)
                                 (qwen-companion-hunks-change-new-count change))))
     do (cl-incf shift (- (qwen-companion-hunks-proposed-count change)
                          (qwen-companion-hunks-change-old-count change))))))

(defun qwen-companion-changes-file-change-at (file line)
  "Return the change of FILE at LINE of its current text, or nil.
Where lines were removed, that is the line before or after them."
  (car (cl-find-if (pcase-lambda (`(,_ ,start . ,count))
                     (if (= count 0)
                         (<= (1- start) line start)
                       (and (<= start line) (< line (+ start count)))))
                   (qwen-companion-changes-file-positions file))))

(defun qwen-companion-changes-file-changes (file)
  "Return each change of FILE in order; it must be `ready'."
  (qwen-companion-hunks-changes (qwen-companion-changes-file-difference file)))

(defun qwen-companion-changes-file-bytes (file dropped-p)
  "Return the bytes that the agent left in FILE without the dropped parts.
DROPPED-P is a predicate of a change.  Return nil for no file."
  (let* ((before (qwen-companion-changes-file-before file))
         (after (qwen-companion-changes-file-after file))
         (changes (qwen-companion-changes-file-changes file))
         (dropped (cl-count-if dropped-p changes)))
    (cond
     ((= dropped 0) after)
     ((= dropped (length changes)) before)
     (t
      (let* ((coding (qwen-companion-undo-lossless-coding (or after before)))
             (old (qwen-companion-changes-file--split before coding))
             (new (qwen-companion-changes-file--split after coding))
             (old-line 1)
             (new-line 0)
             (parts nil))
        (cl-flet ((take (lines from count)
                    (dotimes (index count)
                      (push (aref lines (+ from index)) parts))))
          (dolist (change changes)
            (let ((old-at (qwen-companion-hunks-change-old change))
                  (old-count (qwen-companion-hunks-change-old-count change))
                  (new-count (qwen-companion-hunks-proposed-count change)))
              (take new new-line (- old-at old-line))
              (cl-incf new-line (- old-at old-line))
              (if (funcall dropped-p change)
                  (take old (1- old-at) old-count)
                (take new new-line new-count))
              (cl-incf new-line new-count)
              (setq old-line (+ old-at old-count))))
          (take new new-line (- (length new) new-line)))
        (encode-coding-string
         (qwen-companion-changes-file--join (nreverse parts)) coding t))))))

(defun qwen-companion-changes-file--split (bytes coding)
  "Return the lines of BYTES, decoded by CODING, with their ends; a vector."
  (let ((text (decode-coding-string (or bytes "") coding t))
        (start 0)
        (lines nil))
    (while (< start (length text))
      (let ((end (1+ (or (string-search "\n" text start) (1- (length text))))))
        (push (substring text start end) lines)
        (setq start end)))
    (vconcat (nreverse lines))))

(defun qwen-companion-changes-file--join (lines)
  "Return LINES as one text; only the last of them may lack its end."
  (let ((end (if (and lines (string-suffix-p "\r\n" (car lines))) "\r\n" "\n")))
    (mapconcat #'identity
               (cl-loop for (line . rest) on lines
                        collect (if (and rest (not (string-suffix-p "\n" line)))
                                    (concat line end)
                                  line))
               "")))

(defun qwen-companion-changes-file-toggle-undone (file list turn label)
  "Undo each change in LIST of FILE, or restore it if it is undone.
Either all of them are undone, or none.  TURN is the id of their turn;
LABEL describes the action for the journal.  Return the outcome, as in
`qwen-companion-undo-apply-steps'."
  (let* ((undo (not (qwen-companion-hunks-change-text (car list))))
         (difference (qwen-companion-changes-file-difference file))
         (base (qwen-companion-changes-file-bytes
                file #'qwen-companion-hunks-change-text))
         (target (qwen-companion-changes-file-bytes
                  file (lambda (change)
                         (if (memq change list)
                             undo
                           (qwen-companion-hunks-change-text change)))))
         (before-mode (qwen-companion-changes-file-before-mode file))
         (after-mode (qwen-companion-changes-file-after-mode file))
         (result
          (cdar (qwen-companion-undo-apply-steps
                 (list (cons (qwen-companion-changes-file-path file)
                             (make-qwen-companion-undo-step
                              :root (plist-get (qwen-companion-changes-file-part file) :root)
                              :path (qwen-companion-changes-file-path file)
                              :base base :target target
                              :apart (qwen-companion-changes-file-apart file)
                              :base-mode (and base (or after-mode before-mode))
                              :target-mode (and target (or after-mode before-mode)))))
                 turn label (if undo 'undo 'bring-back)))))
    (when (memq result '(written unsaved same))
      (qwen-companion-changes-file--note file difference list undo))
    result))

(defun qwen-companion-changes-file--note (file difference list undo)
  "Mark each change in LIST as undone in FILE, or as restored if UNDO is nil.
LIST is from DIFFERENCE.  Do nothing if FILE has been compared again since,
or is about to be."
  (when (and (eq 'ready (qwen-companion-changes-file-state file))
             (eq difference (qwen-companion-changes-file-difference file)))
    (dolist (change list)
      (when (eq undo (null (qwen-companion-hunks-change-text change)))
        (let ((hunk (make-qwen-companion-hunks-hunk :changes (list change))))
          (if undo
              (qwen-companion-hunks-drop difference hunk)
            (qwen-companion-hunks-restore difference hunk)))))
    (qwen-companion-changes-file--note-undone file)))

(defun qwen-companion-changes-file-key (file change)
  "Return the journal's key of CHANGE of FILE, for marking it as seen."
  (let ((difference (qwen-companion-changes-file-difference file)))
    (secure-hash 'sha1
                 (encode-coding-string
                  (concat (qwen-companion-hunks-disk-lines difference change)
                          "\0"
                          (qwen-companion-hunks-proposed-lines difference change))
                  'utf-8-emacs-unix))))

(provide 'qwen-companion-changes-file)
;;; qwen-companion-changes-file.el ends here
